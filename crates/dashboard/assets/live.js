// Keeps a page current: when the server has looked, the page is fetched again and the parts of it that are
// marked as live are exchanged. Without this script a reload does the same.
"use strict";
(() => {
  const status = document.getElementById("live");
  const say = (text, kind) => {
    if (status.textContent !== text) status.textContent = text;
    status.className = "live " + kind;
  };

  // What somebody is about to use, or has marked, stays as it is.
  const inUse = (part) => {
    const focus = document.activeElement;
    const marked = document.getSelection();
    return (
      (part.contains(focus) && focus.matches("a, button, input, select")) ||
      (!marked.isCollapsed && marked.containsNode(part, true))
    );
  };

  let events = null;
  let busy = false;
  const refresh = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html", "x-again": "1" } });
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live], header nav")) {
        const next = part.id ? fresh.getElementById(part.id) : fresh.querySelector("header nav");
        if (next && next.innerHTML !== part.innerHTML && !inUse(part)) part.innerHTML = next.innerHTML;
      }
      if (events?.readyState === EventSource.OPEN) say("live", "on");
    } catch {
      say("no answer", "lost");
    } finally {
      busy = false;
    }
  };

  // A page that the browser keeps for the way back must not keep its connection: there are only six.
  const hush = () => {
    events?.close();
    events = null;
  };
  const listen = () => {
    if (events || document.body.dataset.current === undefined) return;
    events = new EventSource(document.body.dataset.base + "/events");
    events.addEventListener("open", () => say("live", "on"));
    events.addEventListener("look", refresh);
    events.addEventListener("error", () => {
      say("no answer", "lost");
      // The browser tries again by itself, unless it was turned away.
      if (events?.readyState === EventSource.CLOSED) {
        hush();
        setTimeout(listen, 5000);
      }
    });
  };
  listen();
  window.addEventListener("pageshow", listen);
  window.addEventListener("pagehide", hush);
  document.addEventListener("visibilitychange", () => events && refresh());

  // What is done cannot always be undone.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    let question = form.dataset.confirm;
    if (form.hasAttribute("data-confirm-many")) {
      const decision = event.submitter ? event.submitter.value : "decide";
      const all = form.elements.scope && form.elements.scope.value === "all";
      const selected = form.querySelectorAll("input[name=id]:checked").length;
      if (all) question = `Really ${decision} all pending dead letters of this filter, on every page?`;
      else if (decision === "discard") question = `Really discard ${selected} dead letters?`;
    }
    if (question && !window.confirm(question)) event.preventDefault();
  });

  document.addEventListener("change", (event) => {
    if (!event.target.hasAttribute("data-select-all")) return;
    for (const box of document.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
  });

  // A slash leads to the search, as everywhere.
  document.addEventListener("keydown", (event) => {
    const search = document.getElementById("search");
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    }
  });
})();
