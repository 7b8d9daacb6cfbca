// Tables that are asked for, and changes that this page may make.

import { el } from "/web/dom.js";

let known = null;

// Whether this page may make changes, and its token.
export async function standing() {
  known ??= await json("/standing");
  return known;
}

async function json(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    throw new Error(`The name server does not answer: ${error.message}`);
  }
  if (!answer.headers.get("content-type")?.startsWith("application/json")) throw new Error((await answer.text()).trim());
  const value = await answer.json();
  if (value.error || value.refused) throw new Error(value.error ?? value.refused);
  return value;
}

export const hour = (group) => json(`/hour${group ? `?group=${encodeURIComponent(group)}` : ""}`);

export const ask = (of, fields = {}) => json(`/ask?${new URLSearchParams({ of, ...fields })}`);

async function act(fields) {
  const { token } = await standing();
  const headers = { "content-type": "application/json", "x-rmqha-token": token };
  return (await json("/act", { method: "POST", headers, body: JSON.stringify(fields) })).done;
}

const place = () => document.getElementById("notes");

export function say(text, tone) {
  place().replaceChildren(el("p", { class: `banner ${tone}` }, text));
}

export function wrong(error) {
  say(error.message, "wrong");
}

// A form that makes a change; `fields`: [{name, label, value, kind, choices, needed}]. `after` runs when it is done.
// Fields in `times` are sent as milliseconds.
export function actForm({ act: name, title, button, fields, fixed = {}, warn = "", times = [], after }) {
  const inputs = fields.map((field) => el("label", {}, field.label, field.kind === "choice"
    ? el("select", { name: field.name }, field.choices.map((choice) => el("option", { value: choice, selected: choice === field.value }, choice)))
    : field.kind === "text"
      ? el("textarea", { name: field.name, rows: 3, required: field.needed ?? true, maxlength: 65536 }, field.value ?? "")
      : el("input", { type: field.kind === "time" ? "datetime-local" : "text", step: field.kind === "time" ? "1" : null, name: field.name, value: field.value ?? "", required: field.needed ?? true, maxlength: 255, spellcheck: "false", inputmode: field.kind === "number" ? "numeric" : null, pattern: field.kind === "number" ? "[0-9]+" : null })));
  const form = el("form", { class: "card act", autocomplete: "off" }, el("h3", {}, title), warn ? el("p", { class: "note" }, warn) : null,
    el("div", { class: "fields" }, inputs), el("p", { class: "buttons" }, el("button", { type: "submit" }, button)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const pressed = form.querySelector("button");
    pressed.disabled = true;
    try {
      const given = Object.fromEntries(new FormData(form));
      for (const time of times) given[time] = given[time] ? String(new Date(given[time]).getTime()) : "";
      say(await act({ act: name, ...fixed, ...given }), "well");
      await after?.();
    } catch (error) {
      wrong(error);
    } finally {
      pressed.disabled = false;
      place().scrollIntoView({ block: "nearest" });
    }
  });
  return form;
}

// The forms if this page may make changes, else the sentence that says how it would.
export async function acting(build) {
  const { acts, why } = await standing();
  return acts ? build() : [el("p", { class: "faint" }, `This page makes no changes: ${why}. The rmqha command does.`)];
}

export const silent = (items) => items.map((words) => el("p", { class: "note" }, `Not told: ${words}`));
