import { count, el, live, show, table } from "/web/dom.js";
import { facts, health, replicas, role, writable } from "/web/parts.js";

const place = (id) => document.getElementById(id);

const CONTROLLERS = [{ name: "Controller" }, { name: "Role" }, { name: "Term", right: true }, { name: "Commit index", right: true }, { name: "Follows" }];

function controllers(items) {
  if (!items.length) return el("p", { class: "faint" }, "No controller is known: neither this name server's controllerAddr nor a broker names one.");
  return table("Controllers", CONTROLLERS, items.map((item) => ({
    tone: item.error ? "wrong" : null,
    cells: [
      el("span", {}, el("b", {}, item.node ?? "?"), " ", el("span", { class: "faint" }, item.address),
        item.error ? el("ul", { class: "remarks" }, el("li", { class: "wrong" }, item.error)) : null),
      item.error ? role("DOWN") : role(item.role),
      count(item.term),
      count(item.commitIndex),
      item.role === "LEADER" ? "leads" : item.leader ?? "nobody",
    ],
  })));
}

function card(group) {
  const link = el("a", { href: `/group?name=${encodeURIComponent(group.name)}`, id: `group-${group.name}` }, group.name);
  return el("article", { class: "card" },
    el("h3", {}, link, " ", writable(group)),
    el("p", { class: "facts" }, facts(group).map((item) => el("span", {}, item))),
    group.whyNotWritable ? el("p", { class: "why" }, group.whyNotWritable) : null,
    replicas(group));
}

live("/events", (value) => {
  document.body.dataset.seen = "1";
  if (value.error) {
    show(place("health"), value.error, (words) => el("p", { class: "banner wrong" }, words));
    return;
  }
  show(place("health"), value.health, health);
  show(place("groups"), [value.groups, value.groupsLeftOut], ([groups, left]) =>
    groups.length ? [groups.map(card), left ? el("p", { class: "faint" }, `${count(left)} more groups are not shown; they are below those that take no messages. rmqha describe cluster lists all.`) : []] : [el("p", { class: "faint" }, "No broker has registered here, and no controller knows a group.")]);
  show(place("controllers"), value.controllers, (items) => [controllers(items)]);
});
