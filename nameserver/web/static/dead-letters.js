import { count, el, show, table, time } from "/web/dom.js";
import { actForm, acting, ask, silent, wrong } from "/web/desk.js";

const found = document.getElementById("found");
const half = document.getElementById("half");

const COLUMNS = [{ name: "Group" }, { name: "Queue" }, { name: "Dead", right: true }, { name: "Not sent again", right: true }, { name: "Newest stored" }];

async function list() {
  const value = await ask("dead-letters");
  const forms = await acting(() => [...new Set(value.queues.filter((item) => item.notSentAgain).map((item) => item.group))].map((group) =>
    actForm({ act: "dlq.resend", title: `Send those of ${group} to it again`, button: "Send again", fixed: { group }, fields: [], after: list })));
  show(found, [value, forms.length], () => value.queues.length
    ? [table("Dead letters", COLUMNS, value.queues.map((item) => ({
      cells: [item.group, el("a", { href: `/messages?${new URLSearchParams({ by: "place", topic: item.topic, group: item.brokerName, queue: item.queueId, offset: item.low, count: 8 })}` }, `${item.brokerName}:${item.queueId}`),
        count(item.dead), count(item.notSentAgain), time(item.newestAtMs, true)],
    }))), ...silent(value.silent), ...forms]
    : [el("p", { class: "faint" }, "No consumer group has dead letters."), ...silent(value.silent)]);
}

async function waiting() {
  const value = await ask("transactions");
  const open = value.groups.filter((item) => item.waiting);
  show(half, value, () => [open.length
    ? table("Transactions that wait", [{ name: "Group" }, { name: "Waiting, at most", right: true }], open.map((item) => ({
      cells: [el("a", { href: `/messages?${new URLSearchParams({ by: "place", topic: item.topic, group: item.brokerName, queue: item.queueId, offset: item.passed, count: 8 })}` }, item.brokerName), count(item.waiting)],
    })))
    : el("p", { class: "faint" }, "No transaction waits for its producer's word."), ...silent(value.silent)]);
}

Promise.all([list(), waiting()]).catch((error) => {
  found.replaceChildren();
  wrong(error);
});
