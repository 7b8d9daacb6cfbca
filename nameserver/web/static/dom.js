// Building blocks. Text is always set as text: nothing here, nor anywhere on the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const shown = new WeakMap();

// Build `container` anew if what it shows has changed; the keyboard's focus stays where it was.
export function show(container, value, build) {
  const text = JSON.stringify(value);
  if (shown.get(container) === text) return;
  shown.set(container, text);
  const active = document.activeElement;
  const id = active && container.contains(active) ? active.id : "";
  const open = new Set([...container.querySelectorAll("details[open]")].map((node) => node.id));
  container.replaceChildren(...[build(value)].flat(Infinity));
  for (const node of container.querySelectorAll("details")) if (open.has(node.id)) node.open = true;
  if (id) document.getElementById(id)?.focus({ preventScroll: true });
}

const whole = new Intl.NumberFormat("en-US");

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${place ? value.toFixed(value < 10 ? 1 : 0) : value} ${units[place]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms} ms`;
  return ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
}

export function time(ms, withDate = false) {
  if (!ms) return "–";
  const at = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withDate ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}` : clock;
}

// A table whose cells carry their column's name, so that a narrow screen can show each row as a list.
export function table(caption, columns, rows) {
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.right ? "right" : null }, column.name)));
  const body = rows.map((row) =>
    el("tr", { class: row.tone ?? null }, columns.map((column, place) => {
      const value = row.cells[place];
      return el(place === 0 ? "th" : "td", {
        scope: place === 0 ? "row" : null,
        class: column.right ? "right" : null,
        "data-name": column.name,
      }, value === null || value === undefined || value === "" ? "–" : value);
    })));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, head), el("tbody", {}, body)));
}

// The page's live document: `onDocument` gets it each time that it changes. A page that nobody sees asks for nothing:
// a browser keeps few connections to one server, and the nodes are left alone.
export function live(url, onDocument) {
  const state = document.getElementById("state");
  const at = document.getElementById("at");
  let source = null;
  let retry = 0;
  const say = (text, tone) => {
    if (state.textContent !== text) state.textContent = text;
    state.parentElement.className = tone;
  };
  const stop = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const start = () => {
    stop();
    source = new EventSource(url);
    source.onmessage = (message) => {
      say("● live", "well");
      onDocument(JSON.parse(message.data));
    };
    source.addEventListener("at", (message) => {
      at.textContent = time(JSON.parse(message.data));
      if (document.body.dataset.seen) say("● live", "well");
    });
    source.onerror = () => {
      say("✕ the name server does not answer; what you see is old. Trying again…", "wrong");
      if (source?.readyState === EventSource.CLOSED) retry = setTimeout(start, 3000);
    };
  };
  const follow = () => (document.hidden ? stop() : start());
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  follow();
}
