import { bytes, duration, el, time } from "/web/dom.js";
import { actForm, standing } from "/web/desk.js";

const form = document.getElementById("form");
const notes = document.getElementById("notes");
const found = document.getElementById("found");
const fields = ["id", "topic", "key", "group", "queue", "offset", "count", "at"];

const chosen = () => form.elements.by.value;

// Only the fields of the chosen way are shown, needed and sent.
function choose() {
  const by = chosen();
  for (const node of form.querySelectorAll("[data-by]")) node.hidden = !node.dataset.by.split(" ").includes(by);
  for (const name of fields) form.elements[name].disabled = form.elements[name].closest("label").hidden;
  form.elements.topic.required = by !== "id";
  for (const id of ["earlier", "later"]) document.getElementById(id).hidden = by !== "place";
}

function message(item, acts) {
  const facts = [
    ["Place", `${item.group} · queue ${item.queueId} · offset ${item.queueOffset}`],
    ["Stored", `${time(item.storedAtMs, true)}, ${duration(item.storedAtMs - item.bornAtMs)} after it was made`],
    ["Message id", item.msgId],
    ["Record id", item.offsetMsgId],
    ["Physical offset", String(item.physicalOffset)],
    item.keys ? ["Keys", item.keys] : null,
    item.tags ? ["Tags", item.tags] : null,
    item.reconsumeTimes ? ["Consumed again", `${item.reconsumeTimes} times`] : null,
  ].filter((fact) => fact !== null);
  const left = item.propertiesLeftOut ? el("p", { class: "faint" }, `${item.propertiesLeftOut} more properties are not shown.`) : null;
  return el("article", { class: "card message" },
    el("h2", {}, item.topic),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    item.properties.length ? el("details", {}, el("summary", {}, `${item.properties.length} properties`),
      el("dl", {}, item.properties.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])), left) : null,
    el("h3", {}, `Body, ${bytes(item.body.bytes)}${item.body.compressed ? " compressed" : ""}${item.body.kind === "hex" ? ", as hex because it is no text" : ""}`),
    item.body.kind === "empty" ? el("p", { class: "faint" }, "empty") : el("pre", { tabindex: "0", class: item.body.kind }, item.body.text),
    item.body.note ? el("p", { class: "note" }, `Cut: ${item.body.note}`) : null,
    acts ? actForm({ act: "message.resend", title: "Send a copy to its topic", button: "Send again", fixed: { id: item.msgId, topic: item.topic },
      warn: "All groups of the topic read it. For one group only reset that group.", fields: [] }) : null);
}

async function lookUp() {
  const query = new URLSearchParams(new FormData(form));
  history.replaceState(null, "", `?${query}`);
  if (query.has("at")) query.set("since", String(new Date(query.get("at")).getTime()));
  notes.replaceChildren(el("p", { class: "faint" }, "asking the brokers…"));
  found.replaceChildren();
  try {
    const answer = await fetch(`/lookup?${query}`);
    if (!answer.headers.get("content-type")?.startsWith("application/json")) throw new Error((await answer.text()).trim());
    const value = await answer.json();
    const total = value.messages.length;
    const head = value.refused || !answer.ok ? [] : [el("p", {}, total === 1 ? "1 message" : `${total} messages`)];
    const tone = value.refused || !answer.ok ? "banner wrong" : "note";
    notes.replaceChildren(...head, ...value.notes.map((words) => el("p", { class: tone }, words)));
    const { acts } = await standing();
    found.replaceChildren(...value.messages.map((item) => message(item, acts)));
  } catch (error) {
    notes.replaceChildren(el("p", { class: "banner wrong" }, `The name server does not answer: ${error.message}`));
  }
}

function move(sign) {
  const step = Math.max(1, Number(form.elements.count.value) || 1);
  form.elements.offset.value = String(Math.max(0, (Number(form.elements.offset.value) || 0) + sign * step));
  lookUp();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp();
});
form.addEventListener("change", choose);
document.getElementById("earlier").addEventListener("click", () => move(-1));
document.getElementById("later").addEventListener("click", () => move(1));

const given = new URLSearchParams(location.search);
for (const radio of form.elements.by) radio.checked = radio.value === (given.get("by") ?? "id");
choose();
for (const name of fields) if (given.has(name)) form.elements[name].value = given.get(name);
if (given.has("by") && form.checkValidity()) lookUp();
