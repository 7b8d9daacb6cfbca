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
// A connection that stays open tells nothing of who is at its other end: a name server that is frozen, or cut off, says
// nothing, not even goodbye. So the page calls itself live only while it hears the heartbeat and looks end in time.
const SILENT_MS = 6000;
const DIAL_AGAIN_MS = 15000;

export function live(url, onDocument) {
  const state = document.getElementById("state");
  const at = document.getElementById("at");
  let source = null;
  let retry = 0;
  let watchdog = 0;
  let heard = 0; // when anything came last
  let dialled = 0;
  let due = 0; // until when the picture is fresh
  let lookedAt = 0;
  let fresh = false; // a look has come since this page was last seen
  let trouble = "";
  const say = (text, tone) => {
    if (state.textContent !== text) state.textContent = text;
    state.parentElement.className = tone;
    document.body.classList.toggle("old", tone !== "well");
  };
  const asOf = () => (lookedAt ? ` It is as it was at ${time(lookedAt)}.` : "");
  const old = (why, doing = "") => say(`✕ ${why}; what you see is old.${asOf()}${doing}`, "wrong");
  const hear = () => {
    heard = Date.now();
    trouble = "";
  };
  const judge = () => {
    const now = Date.now();
    if (now - heard > SILENT_MS) {
      old(trouble || "the name server is silent", " Trying again…");
      if (now - Math.max(heard, dialled) > DIAL_AGAIN_MS) start();
    } else if (fresh) {
      if (now > due) old("the name server is there but has not asked the nodes in time");
      else say("● live", "well");
    }
  };
  const stop = () => {
    clearTimeout(retry);
    clearInterval(watchdog);
    source?.close();
    source = null;
  };
  const start = () => {
    stop();
    dialled = Date.now();
    if (!heard) heard = dialled;
    watchdog = setInterval(judge, 500);
    source = new EventSource(url);
    source.onmessage = (message) => {
      hear();
      onDocument(JSON.parse(message.data));
    };
    source.addEventListener("at", (message) => {
      const look = JSON.parse(message.data);
      hear();
      due = heard + look.nextMs + SILENT_MS;
      lookedAt = look.at;
      fresh = true;
      at.textContent = time(look.at);
      judge();
    });
    source.addEventListener("beat", () => {
      hear();
      judge();
    });
    source.onerror = () => {
      trouble = "the name server does not answer";
      heard = Math.min(heard, Date.now() - SILENT_MS - 1);
      judge();
      if (source?.readyState === EventSource.CLOSED) retry = setTimeout(start, 3000);
    };
  };
  const follow = () => {
    if (document.hidden) return stop();
    heard = 0; // a page that was not seen has listened to nobody
    fresh = false;
    say(`asking the nodes…${asOf()}`, "");
    start();
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  follow();
}
