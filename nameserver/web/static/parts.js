// What the cluster's and the group's page have in common.

import { bytes, count, duration, el, table } from "/web/dom.js";

// Each role has a sign and a word besides its colour.
const ROLES = {
  MASTER: ["★", "master", "well"],
  PROMOTING: ["★", "being promoted", "note"],
  SLAVE: ["●", "slave", "plain"],
  STARTING: ["◌", "starting", "note"],
  DOWN: ["✕", "no answer", "wrong"],
  APACHE: ["●", "Apache's", "plain"],
  LEADER: ["★", "leader", "well"],
  FOLLOWER: ["●", "follower", "plain"],
};

export function role(name) {
  const [sign, word, tone] = ROLES[name] ?? ["◌", String(name ?? "unknown").toLowerCase(), "note"];
  return el("span", { class: `badge ${tone}` }, el("span", { "aria-hidden": "true" }, sign), ` ${word}`);
}

export function health(value) {
  const wrong = value.findings.filter((item) => !item.note);
  const notes = value.findings.filter((item) => item.note);
  const views = value.views;
  const title = value.healthy
    ? el("p", { class: "banner well" }, el("strong", {}, "✓ HEALTHY"), ` ${value.answered} nodes answered`)
    : el("p", { class: "banner wrong" }, el("strong", {}, `✕ ${value.wrong === 1 ? "1 thing is" : `${value.wrong} things are`} wrong`),
      ` ${value.answered} nodes answered`);
  const line = (item) => el("li", {}, el("strong", {}, item.where), `: ${item.what}`,
    item.fix ? el("div", { class: "fix" }, `→ ${item.fix}`) : null);
  return [
    title,
    wrong.length ? el("ul", { class: "findings" }, wrong.map(line)) : null,
    notes.length ? el("details", { id: "health-notes", open: true }, el("summary", {}, `${notes.length} to know`), el("ul", { class: "findings notes" }, notes.map(line))) : null,
    views.length ? el("details", { id: "health-views" }, el("summary", {}, views.length === 1 ? "1 view that does not match" : `${views.length} views that do not match`), views.map(view)) : null,
  ].filter((item) => item !== null);
}

function view(item) {
  const rows = [...item.says.map(([who, words]) => ({ cells: [who, words] })), ...item.silent.map((who) => ({ cells: [who, "no answer"] }))];
  return el("div", {}, el("p", {}, el("strong", {}, item.agreement), `: ${item.about} on ${item.group}`),
    table(`${item.about} on ${item.group}`, [{ name: "Node" }, { name: "Says" }], rows));
}

const COLUMNS = [
  { name: "Replica" },
  { name: "Role" },
  { name: "In set" },
  { name: "Epoch", right: true },
  { name: "Log end", right: true },
  { name: "Confirmed", right: true },
  { name: "Lag", right: true },
];

export function replicas(group) {
  const rows = group.replicas.map((item) => ({
    tone: item.error ? "wrong" : null,
    cells: [
      el("span", {}, el("b", {}, item.name ?? (item.id === null ? "?" : String(item.id))), " ", el("span", { class: "faint" }, item.address + (item.zone ? ` · ${item.zone}` : "")),
        item.error || item.notes.length ? el("ul", { class: "remarks" }, item.error ? el("li", { class: "wrong" }, item.error) : null, item.notes.map((note) => el("li", {}, note))) : null),
      role(item.role),
      el("span", { class: "whole" }, item.inSet === null ? "?" : item.inSet ? "✓ in" : item.isEligible ? "◐ eligible" : "○ out"),
      count(item.epoch),
      count(item.maxOffset),
      count(item.confirmOffset),
      item.lagBytes === null ? "–" : item.lagBytes === 0 ? "0" : `${bytes(item.lagBytes)}${item.lagMs ? ` · ${duration(item.lagMs)}` : ""}`,
    ],
  }));
  return table(`Replicas of ${group.name}`, COLUMNS, rows);
}

// The name of a replica that is known by its id, its id if nobody told one.
export function nameOf(group, id) {
  return group.replicas.find((item) => item.id === id)?.name ?? `replica ${id}`;
}

export function facts(group) {
  const set = group.set === null ? "unknown" : `${group.set.map((id) => nameOf(group, id)).join(", ") || "empty"}${group.totalReplicas ? ` of ${group.totalReplicas}` : ""}`;
  const found = [
    group.kind ?? "kind unknown",
    group.masterId === null && !group.masterAddress ? "no master" : `master ${group.masterId === null ? group.masterAddress : nameOf(group, group.masterId)}`,
    `epoch ${group.epoch ?? "–"}`,
    `in the set: ${set}`,
  ];
  if (group.oneCopySynced) found.push("one copy, synced");
  if (group.putTps !== null) found.push(`${count(group.putTps)} in/s · ${count(group.getTps)} out/s`);
  if (group.cluster) found.push(`cluster ${group.cluster}`);
  if (group.waitingCount) found.push(`${count(group.waitingCount)} sends wait`);
  return found;
}

export function writable(group) {
  if (group.writable === null) return el("span", { class: "badge note" }, "◌ writable: unknown");
  return group.writable ? el("span", { class: "badge well" }, "✓ takes messages") : el("span", { class: "badge wrong" }, "✕ takes no messages");
}
