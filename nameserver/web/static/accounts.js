import { el, show, table } from "/web/dom.js";
import { ask, silent, wrong } from "/web/desk.js";

const found = document.getElementById("found");

ask("accounts").then((value) => show(found, value, () => value.users.length
  ? [table("Accounts", [{ name: "User" }, { name: "Kind" }, { name: "Status" }, { name: "May" }], value.users.map((item) => ({
    cells: [item.user, item.type, item.status, item.rights.length ? el("ul", { class: "remarks" }, item.rights.map((words) => el("li", {}, words))) : item.type.startsWith("Super") ? "everything" : "nothing"],
  }))), ...silent(value.silent)]
  : [el("p", { class: "faint" }, "The brokers keep no accounts of ACL 2.0 (authenticationEnabled)."), ...silent(value.silent)]),
).catch((error) => {
  found.replaceChildren();
  wrong(error);
});
