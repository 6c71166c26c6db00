/* What reports, the local page and widgets share: theme, numbers as text, colours, downloads. All of it lives in `toposcope`.
   Colours are read from the page, or from `toposcopeRoot` where a widget names its own element. */
"use strict";
const toposcope = (() => {
  const root = typeof toposcopeRoot === "undefined" ? document.documentElement : toposcopeRoot;
  const listeners = [];
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  // -------------------------------------------------------------- theme
  const remembered = () => { try { return localStorage.getItem("toposcope-theme"); } catch { return null; } };
  const theme = {
    current: () => root.dataset.theme || (system.matches ? "dark" : "light"),
    set(name) {
      root.dataset.theme = name;
      try { localStorage.setItem("toposcope-theme", name); } catch { /* a file may not be allowed to remember */ }
      theme.changed();
    },
    toggle: () => theme.set(theme.current() === "dark" ? "light" : "dark"),
    onChange: (listener) => listeners.push(listener),
    changed() {
      const button = document.getElementById("theme");
      if (button) button.textContent = theme.current() === "dark" ? "Light" : "Dark";
      for (const listener of listeners) listener();
    },
    start() {
      const before = remembered();
      if (before === "dark" || before === "light") root.dataset.theme = before;
      document.getElementById("theme")?.addEventListener("click", theme.toggle);
      system.addEventListener("change", theme.changed);
      window.matchMedia("print").addEventListener("change", theme.changed); // paper is always light
      theme.changed();
    },
  };
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // -------------------------------------------------------------- colours between colours
  let palette = [];
  function parts(hex) {
    const text = hex.length === 4 ? hex.replace(/[0-9a-f]/gi, "$&$&") : hex;
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  }
  /** A function from [0, 1] to a colour, through the given stops. */
  function ramp(stops) {
    const known = stops.map(parts);
    return (at) => {
      const place = Math.min(1, Math.max(0, at)) * (known.length - 1);
      const below = Math.min(known.length - 2, Math.floor(place));
      const share = place - below;
      return "rgb(" + known[below].map((low, i) => Math.round(low + share * (known[below + 1][i] - low))).join(" ") + ")";
    };
  }
  const sequential = () => ramp([0, 1, 2, 3, 4].map((i) => colour("ramp-" + i)));
  const diverging = () => ramp(["low-2", "low-1", "mid", "high-1", "high-2"].map(colour));
  /** Black or white, whichever reads better on a colour given as rgb(). */
  function inkOn(rgb) {
    const [r, g, b] = rgb.startsWith("#") ? parts(rgb) : rgb.match(/\d+/g).map(Number);
    return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1b2430" : "#ffffff";
  }

  // -------------------------------------------------------------- numbers and elements
  function show(value, format) {
    if (value === null || value === undefined) return "–";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "number") return String(value).replaceAll("_", " ");
    if (format === "percent") return (100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1) + "%";
    const size = Math.abs(value);
    if (format === "integer" || Number.isInteger(value) || (size >= 1000 && size < 1e6)) return Math.round(value).toLocaleString("en");
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
  }
  /** From the least to the largest, where they differ. */
  const span = (low, high) => (show(low) === show(high) ? show(low) : `${show(low)} to ${show(high)}`);
  /** An element with attributes and children; text is always text, never markup. */
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  // -------------------------------------------------------------- keys
  /** Arrow keys go through `lists()` of points: left and right within one, up and down to the next at about the same x. What they
      come to is handed to `show`; the answer tells where they are. */
  function byKeys(place, lists, show) {
    let at = [0, 0];
    const within = (value, list) => Math.max(0, Math.min(list.length - 1, value));
    const here = (all) => { at[0] = within(at[0], all); at[1] = within(at[1], all[at[0]]); return all[at[0]][at[1]]; };
    place.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      const other = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const all = lists();
      if (!all.length || (step === undefined && other === undefined)) return;
      event.preventDefault();
      const { x } = here(all);
      if (other && all.length > 1) {
        const next = within(at[0] + other, all);
        const nearest = all[next].reduce((best, point, i) => (Math.abs(point.x - x) < Math.abs(all[next][best].x - x) ? i : best), 0);
        if (next !== at[0]) at = [next, nearest];
      } else at[1] += step ?? other;
      show(here(all));
    });
    return () => { const all = lists(); return all.length ? here(all) : null; };
  }

  // -------------------------------------------------------------- downloads
  function save(name, text, type) {
    const address = URL.createObjectURL(new Blob([text], { type: type + ";charset=utf-8" }));
    const link = element("a", { href: address, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
  function csvCell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number" || typeof value === "boolean") return String(value);
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const safe = /^[=+@\t\r-]/.test(text) ? "'" + text : text; // a spreadsheet would take it for a formula
    return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
  }
  function csv(rows) {
    const names = [...new Set(rows.flatMap(Object.keys))];
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
  }
  /** Put text on the clipboard, and say so on the button; where that is not allowed it is handed out as a file. */
  async function copy(button, text, file) {
    const before = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { save(file, text + "\n", "text/plain"); button.textContent = "Saved"; }
    setTimeout(() => { button.textContent = before; }, 1500);
  }
  /** Buttons that hand out rows, a picture as a file (`image`: a promise of its address) and the line of Python that makes it; each
      is asked for only when its button is pressed. */
  function saveButtons(name, rows, { image, python } = {}) {
    const file = name.replace(/[^\w.-]+/g, "-");
    const picture = async () => { const link = element("a", { href: await image(), download: file + ".png" }); document.body.append(link); link.click(); link.remove(); };
    return element("div", { class: "save" },
      ...(image ? [element("button", { type: "button", "data-save": "image", "aria-label": `Download ${name} as an image`, onclick: picture }, "Image")] : []),
      ...(python ? [element("button", { type: "button", "data-save": "python", "aria-label": `Copy the Python that makes ${name}`, onclick: (event) => copy(event.currentTarget, python, file + ".py") }, "Python")] : []),
      "Data:",
      element("button", { type: "button", "data-save": "json", "aria-label": `Download ${name} as JSON`,
        onclick: () => save(file + ".json", JSON.stringify(rows(), null, 1), "application/json") }, "JSON"),
      element("button", { type: "button", "data-save": "csv", "aria-label": `Download ${name} as CSV`,
        onclick: () => save(file + ".csv", csv(rows()), "text/csv") }, "CSV"));
  }

  return {
    get palette() { if (!palette[0]) palette = Array.from({ length: 12 }, (_, i) => colour("palette-" + i)); return palette; },
    theme, colour, ramp, sequential, diverging, inkOn, show, span, element, byKeys, save, csv, copy, saveButtons,
  };
})();
