// Refetches a live page and swaps the parts that have changed; shows times as ages, in UTC or in the local zone; copies payloads.
// Everything else works without it.
"use strict";
(() => {
  const EVERY = 2500, LONGEST = 30000;
  const main = document.getElementById("main");
  const tools = document.querySelector(".tools");
  // The clock of the server, by which ages are.
  const skew = Date.parse(main.dataset.now) - Date.now();
  const said = document.querySelector("[data-said]");
  const age = document.querySelector("[data-age]");
  const pause = document.querySelector("[data-pause]");
  const zone = document.querySelector("[data-zone]");
  const MODES = ["ago", "UTC", "local"];
  let mode = "ago", paused = false, failed = 0, timer = 0, running = null, kept_back = false;

  // A browser may refuse storage; then the choice lasts as long as the page.
  // Like `format::ago` of the server.
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const ago = (date) => {
    const ms = Date.now() + skew - date.getTime(), seconds = Math.floor(Math.abs(ms) / 1000);
    const [unit, name] = UNITS.find(([unit]) => seconds >= unit) ?? [1, "s"];
    const number = Math.floor(seconds / unit);
    if (!seconds) return "now";
    if (name === "d" && number > 60) return date.toISOString().slice(0, 10);
    return ms < 0 ? `in ${number} ${name}` : `${number} ${name} ago`;
  };
  const kept = { get: () => { try { return localStorage.getItem("millstream-zone"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("millstream-zone", value); } catch { /* see above */ } } };

  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  const shown = (date) => {
    const minutes = -date.getTimezoneOffset();
    const offset = `${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
      `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)} ${offset}`;
  };
  const times = (within) => {
    for (const time of within.querySelectorAll("time")) {
      const date = new Date(time.getAttribute("datetime"));
      const utc = time.getAttribute("datetime").replace("T", " ").replace("Z", " UTC");
      const text = mode === "ago" ? ago(date) : mode === "local" ? shown(date) : utc;
      if (time.textContent !== text) time.textContent = text;
      time.title = mode === "ago" ? `${utc}\n${shown(date)}` : ago(date);
    }
  };
  const show = () => { zone.textContent = `Times: ${mode}`; times(document); };

  const copies = (within) => {
    for (const button of within.querySelectorAll("[data-copy]")) {
      button.hidden = false;
    }
  };
  const copy = async (text) => {
    // The clipboard exists only where the browser considers the host secure.
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return;
    }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };

  // What a user types or selects is not taken away.
  const busy = () => {
    const active = document.activeElement;
    if (active && main.contains(active) && active.matches("input, select, textarea")) return true;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return true;
    return [...main.querySelectorAll("input:not([type=hidden]), textarea")].some((it) => it.value !== it.defaultValue || it.checked !== it.defaultChecked);
  };
  // Where the focus is, in a form that survives a swap: rows may change their order.
  const stops = (part) => [...part.querySelectorAll("a, button, summary, [tabindex]")];
  const name = (it) => it.getAttribute("href") ?? it.getAttribute("aria-label");
  const place = (part) => {
    const at = stops(part).indexOf(document.activeElement);
    return at < 0 ? null : { at, name: name(document.activeElement) };
  };
  const restore = (part, { at, name: wanted }) => {
    const all = stops(part);
    const it = all[at] && name(all[at]) === wanted ? all[at] : all.find((it) => name(it) === wanted) ?? all[at];
    it?.focus({ preventScroll: true });
  };
  // Rows stay where they are while the pointer is over their table: their values change, and new ones come when it has left.
  const row = (it) => it.querySelector("a")?.getAttribute("href") ?? it.cells[0]?.textContent;
  const held = (old, part) => {
    if (!old.querySelector(".wide:hover")) return false;
    const [now, next] = [old, part].map((it) => [...it.querySelectorAll("tbody tr")]);
    if (now.length === next.length && now.every((it, at) => row(it) === row(next[at]))) return false;
    const fresh = new Map(next.map((it) => [row(it), it]));
    for (const it of now) {
      const other = fresh.get(row(it));
      if (other && other.innerHTML !== it.innerHTML) it.replaceChildren(...other.cloneNode(true).childNodes);
    }
    kept_back = true;
    return true;
  };
  // Puts what is new in the place of the old, and keeps what the user did there: unfolded, scrolled, focused.
  const put = (old, part) => {
    times(part); copies(part);
    const folded = old.querySelectorAll("details");
    part.querySelectorAll("details").forEach((it, at) => { it.open = folded[at]?.open ?? it.open; });
    if (old.innerHTML === part.innerHTML || held(old, part)) return;
    const focus = place(old);
    const scrolled = [...old.querySelectorAll(".wide")].map((it) => it.scrollLeft);
    old.replaceChildren(...part.childNodes);
    old.querySelectorAll(".wide").forEach((it, index) => { it.scrollLeft = scrolled[index] || 0; });
    if (focus) restore(old, focus);
  };
  const swap = (fresh) => {
    const [now, then] = [main, fresh].map((it) => [...it.querySelectorAll("[data-part]")]);
    if (now.length === then.length) {
      now.forEach((old, at) => put(old, then[at]));
    } else {
      const scroll = window.scrollY;
      put(main, fresh);
      window.scrollTo(0, scroll);
    }
  };

  const next = () => {
    clearTimeout(timer);
    if (!paused && !document.hidden && main.hasAttribute("data-live")) {
      timer = setTimeout(refresh, Math.min(EVERY * 2 ** failed, LONGEST));
    }
  };
  const refresh = async () => {
    if (paused || document.hidden || running) return;
    if (busy()) { next(); return; }
    running = new AbortController();
    try {
      const answer = await fetch(location.href, { signal: running.signal, headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      if (!busy() && !paused) {
        swap(fresh);
        // The worst of its states is in the title and the icon.
        document.title = page.title;
        const icon = (it) => it.querySelector("link[rel=icon]");
        if (icon(document).href !== icon(page).href) icon(document).href = icon(page).href;
      }
      if (!fresh.hasAttribute("data-live")) main.removeAttribute("data-live");
      failed = 0;
      age.textContent = "";
    } catch (error) {
      if (error.name !== "AbortError") {
        failed = Math.min(failed + 1, 5);
        age.textContent = `not up to date (${error.message})`;
      }
    } finally {
      running = null;
      next();
    }
  };

  mode = MODES.includes(kept.get()) ? kept.get() : "ago";
  tools.hidden = false;
  show();
  copies(document);
  zone.addEventListener("click", () => { mode = MODES[(MODES.indexOf(mode) + 1) % MODES.length]; kept.set(mode); show(); });
  setInterval(() => { if (mode === "ago" && !document.hidden && !busy()) times(main); }, 10000);
  main.addEventListener("pointerout", (event) => {
    if (kept_back && !event.relatedTarget?.closest?.(".wide")) { kept_back = false; refresh(); }
  });
  pause?.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    age.textContent = paused ? "not refreshed" : "";
    if (paused) running?.abort(); else refresh();
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await copy(button.parentElement.querySelector("pre").textContent);
    said.textContent = "Copied";
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  // A hidden tab asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { clearTimeout(timer); running?.abort(); } else { refresh(); }
  });
  next();
})();
