/* Attention with its tokens: a text whose tokens show where one of them looks, a table of the numbers, and three maps.

   toposcope.attention(place, {
     windows: as report/attention.py packs them; name; label; missing(head): words for a head that is not kept;
     choose(layer, head): called when a head is chosen here })
     ->  { show(layer, head), set(windows, layer, head), state() }
   The text is one stop of the Tab key: arrow keys walk through its tokens, Enter or a click holds one, Escape lets go. */
toposcope.attention = (place, options) => {
  const { element, show, colour } = toposcope;
  const READINGS = [
    { key: "probability", label: "Probability", kind: "sequential", sentence: () => "What the query gives to the key, of all that it gives. Colours go by the square root." },
    { key: "logit", label: "Logit", kind: "sequential", sentence: () => "What enters the softmax, before any cap." },
    { key: "position", label: "Due to position", kind: "diverging", sentence: (head) => (head.due === "offset"
      ? "Position came with the input, so it cannot be switched off in the head: the mean logit at this offset less the mean of all logits."
      : "The logit less that of the same two tokens with position switched off in this head.") },
  ];
  let windows = options.windows;
  let at = { window: 0, head: 0 };
  let reading = READINGS[0];
  let cursor = 0;
  let seenKey = 0; // the key that the arrow keys have come to in a map
  let held = null;
  let hover = null;
  let tables = null;
  let spans = [];

  // -------------------------------------------------------------- unpacking
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const littleEndian = (buffer, size, read) => { const seen = new DataView(buffer); return Array.from({ length: buffer.byteLength / size }, (_, i) => seen[read](i * size, true)); };
  const span = (head, i, count) => [head.reach === null ? 0 : Math.max(0, i - head.reach), head.causal ? i : head.reach === null ? count - 1 : Math.min(count - 1, i + head.reach)];
  /** Three tables of rows; a pair that is not seen has no entry (undefined). */
  function unpack(window, head) {
    const count = window.tokens.length;
    const [low, step, lowest, pace, ...sums] = littleEndian(bytes(head.numbers), 4, "getFloat32");
    const logits = littleEndian(bytes(head.logits), 2, "getUint16");
    const parts = littleEndian(bytes(head.position), 2, "getUint16");
    const found = { probability: [], logit: [], position: [] };
    let place = 0;
    for (let i = 0; i < count; i++) {
      const [from, to] = span(head, i, count);
      const rows = Object.values(found).map((table) => { const row = new Array(count); table.push(row); return row; });
      for (let j = from; j <= to; j++, place++) {
        const logit = low + step * logits[place];
        rows[0][j] = Math.exp((head.softcap === null ? logit : head.softcap * Math.tanh(logit / head.softcap)) - sums[i]);
        rows[1][j] = logit;
        rows[2][j] = lowest + pace * parts[place];
      }
    }
    return found;
  }

  // -------------------------------------------------------------- what stands there
  const heads = element("select", { id: options.name + "-head", onchange: () => { pick(Number(heads.value)); told(); } });
  const stretches = element("select", { id: options.name + "-window", onchange: () => { at.window = Number(stretches.value); held = hover = null; cursor = 0; load(); } });
  const stretchField = element("label", { class: "field", for: options.name + "-window" }, "Tokens", stretches);
  const back = element("button", { type: "button", onclick: () => { pick(at.head - 1); told(); } }, "Previous head");
  const on = element("button", { type: "button", onclick: () => { pick(at.head + 1); told(); } }, "Next head");
  const switches = element("fieldset", { class: "segments" }, element("legend", {}, "Colour the text by"),
    ...READINGS.map((each, i) => element("label", {}, element("input", { type: "radio", name: options.name + "-reading", value: each.key, checked: i === 0, onchange: () => { reading = each; paintRow(); } }), each.label)));
  const missing = element("p", { class: "finding cannot_tell", role: "status", hidden: true });
  const text = element("div", { class: "tokens", tabindex: "0", role: "listbox", "aria-label": "The text, token by token. Arrow keys move, Enter holds a token, Escape lets go.", id: options.name + "-text" });
  const caption = element("p", { class: "small" });
  const live = element("div", { class: "visually-hidden", "aria-live": "polite" });
  const body = element("tbody");
  const list = element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Where the token looks" }, element("table", { class: "pairs-table" }, element("thead", {}, element("tr", {},
    ...["looks at", "probability", "logit", "position"].map((words, i) => element("th", { scope: "col", class: i ? null : "left" }, words)))), body));
  const maps = READINGS.map((each) => {
    const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
    const tip = element("div", { class: "tip", hidden: true });
    const legend = element("div", { class: "legend" });
    const words = element("p", { class: "small soft" });
    const frame = element("div", { class: "heat" }, canvas, tip);
    const whole = element("div", {}, element("h4", {}, each.label), words, frame, legend);
    canvas.addEventListener("mousemove", (event) => overMap(event, each, canvas, tip, frame));
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; leave(); });
    canvas.addEventListener("click", (event) => { const cell = cellOf(event, canvas); if (cell) hold(cell[0]); });
    canvas.addEventListener("keydown", (event) => overKeys(event, each, canvas, tip, frame));
    canvas.addEventListener("blur", () => { tip.hidden = true; });
    return { reading: each, canvas, tip, legend, words, frame, whole };
  });
  place.classList.add("attention");
  place.append(
    element("div", { class: "row" }, element("label", { class: "field", for: options.name + "-head" }, "Layer and head", heads), stretchField, element("span", { class: "row" }, back, on)),
    missing, switches,
    element("div", { class: "attention-row" }, element("div", {}, text, element("p", { class: "small soft" }, "Queries look at keys: the outlined token is the query, colours are its keys.")), element("div", {}, caption, list)),
    live, element("div", { class: "attention-maps" }, ...maps.map((each) => each.whole)),
    toposcope.saveButtons(options.label || "attention", rows));

  const window_ = () => windows[at.window];
  const head = () => window_().heads[at.head];
  const current = () => held ?? hover ?? cursor;
  const number = (key, value) => (key === "probability" ? show(value, "percent") : (key === "position" && value >= 0.0005 ? "+" : "") + (Math.abs(value) >= 0.1 ? value.toFixed(2) : Math.abs(value) < 0.0005 ? "0" : String(Number(value.toPrecision(2)))));
  const word = (i) => window_().tokens[i];
  const called = (i) => `${word(i).trim() || "space"} (${window_().first + i})`;

  // -------------------------------------------------------------- choosing
  function pick(number) { at.head = Math.max(0, Math.min(window_().heads.length - 1, number)); missing.hidden = true; load(); }
  function told() { options.choose?.(head().layer, head().head); }
  function showHead(layer, number) {
    const found = window_().heads.findIndex((each) => each.layer === layer && each.head === number);
    if (found >= 0) { if (found !== at.head || !missing.hidden) pick(found); return true; }
    missing.textContent = options.missing ? options.missing(`${layer}.${number}`) : `The attention of head ${layer}.${number} is not kept here.`;
    missing.hidden = false;
    return false;
  }
  function load() {
    const here = window_();
    heads.replaceChildren(...here.heads.map((each, i) => element("option", { value: i, selected: i === at.head }, `${each.layer}.${each.head}`)));
    heads.value = String(at.head);
    stretches.replaceChildren(...windows.map((each, i) => element("option", { value: i }, `${each.first} to ${each.first + each.tokens.length - 1}`)));
    stretches.value = String(at.window);
    stretchField.hidden = windows.length < 2;
    heads.parentElement.hidden = back.hidden = on.hidden = here.heads.length < 2;
    back.disabled = at.head === 0;
    on.disabled = at.head === here.heads.length - 1;
    tables = unpack(here, head());
    if (spans.length !== here.tokens.length || spans.some((each, i) => each.textContent !== here.tokens[i])) {
      spans = here.tokens.map((token, i) => element("span", { role: "option", id: `${options.name}-token-${i}`, "aria-label": `${here.first + i}: ${token.trim() || "space"}`,
        onmouseenter: () => { hover = i; paintRow(); }, onmouseleave: leave, onclick: () => { cursor = i; hold(i); } }, token));
      text.replaceChildren(...spans);
      cursor = held = null;
    }
    if (cursor === null) cursor = sharpest();
    drawMaps();
    paintRow();
    place.dataset.head = `${head().layer}.${head().head}`;
  }
  /** A token that looks hard at another one: a first row worth reading. */
  function sharpest() {
    let best = spans.length - 1, most = -1;
    tables.probability.forEach((row, i) => row.forEach((p, j) => { if (j !== i && j > 0 && p > most) { most = p; best = i; } }));
    return best;
  }
  function hold(i) { held = held === i ? null : i; hover = null; paintRow(); say(); }
  function leave() { hover = null; paintRow(); }

  // -------------------------------------------------------------- one row
  function black(rgb) {
    const [r, g, b] = rgb.match(/\d+/g).map((part) => { const share = part / 255; return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  }
  function paintRow() {
    const i = current();
    const row = tables[reading.key][i];
    const seen = row.filter((value) => value !== undefined);
    const scale = scaled(reading, seen);
    spans.forEach((each, j) => {
      const value = row[j];
      const fill = value === undefined ? "" : scale.paint(value);
      each.style.background = fill;
      each.style.color = fill ? black(fill) : "";
      each.classList.toggle("query", j === i);
      each.classList.toggle("unseen", value === undefined);
      each.setAttribute("aria-selected", String(j === held));
    });
    text.setAttribute("aria-activedescendant", `${options.name}-token-${cursor}`);
    const keys = [...row.keys()].filter((j) => row[j] !== undefined).sort((a, b) => (reading.kind === "diverging" ? Math.abs(row[b]) - Math.abs(row[a]) : row[b] - row[a])).slice(0, 8);
    const given = tables.probability[i].reduce((sum, p) => sum + (p ?? 0), 0);
    caption.replaceChildren("Token ", element("b", {}, called(i)), held === i ? " (held) " : " ", `in head ${head().layer}.${head().head}. Colours from ${number(reading.key, scale.low)} to ${number(reading.key, scale.high)}.`);
    body.replaceChildren(...keys.map((j) => element("tr", {}, element("td", { class: "left token-name" }, called(j)), element("td", {}, show(tables.probability[i][j], "percent")), element("td", {}, number("logit", tables.logit[i][j])), element("td", {}, number("position", tables.position[i][j])))));
    if (given < 0.9995) body.append(element("tr", {}, element("td", { class: "left" }, window_().tokens.length < window_().length ? "outside the window" : "no token (sink)"), element("td", {}, show(1 - given, "percent")), element("td", {}, "–"), element("td", {}, "–")));
    list.scrollTop = 0;
    for (const each of maps) markRow(each, i);
    place.dataset.query = String(i);
  }
  function say() {
    const i = current();
    const row = tables.probability[i];
    const best = [...row.keys()].filter((j) => row[j] !== undefined).sort((a, b) => row[b] - row[a]).slice(0, 3);
    live.textContent = `${called(i)}${held === i ? ", held" : ""} looks at ${best.map((j) => `${called(j)} ${show(row[j], "percent")}`).join(", ")}.`;
  }
  text.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };
    if (event.key in steps) cursor = Math.max(0, Math.min(spans.length - 1, cursor + steps[event.key]));
    else if (event.key === "Home") cursor = 0;
    else if (event.key === "End") cursor = spans.length - 1;
    else if (event.key === "Escape") held = null;
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    hover = null;
    if (event.key === "Enter" || event.key === " ") { hold(cursor); return; }
    if (held !== null) held = cursor;
    paintRow();
    spans[cursor].scrollIntoView({ block: "nearest" });
    say();
  });

  // -------------------------------------------------------------- maps
  function scaled(each, values) {
    const sorted = Float64Array.from(values).sort();
    const cut = Math.floor(sorted.length / 200); // a first token may lie far off: its colour is cut
    let [low, high] = each.key === "probability" ? [0, Math.max(sorted[sorted.length - 1] ?? 1, 1e-6)] : [sorted[cut] ?? 0, sorted[sorted.length - 1 - cut] ?? 1];
    if (each.kind === "diverging") { high = Math.max(Math.abs(low), Math.abs(high)) || 1; low = -high; }
    if (!(high > low)) high = low + 1;
    const ramp = each.kind === "diverging" ? toposcope.diverging() : toposcope.sequential();
    const place = (value) => { const share = Math.min(1, Math.max(0, (value - low) / (high - low))); return each.key === "probability" ? Math.sqrt(share) : share; };
    return { low, high, ramp, place, paint: (value) => ramp(place(value)) };
  }
  function drawMaps() {
    const count = window_().tokens.length;
    for (const map of maps) {
      const table = tables[map.reading.key];
      const scale = scaled(map.reading, table.flatMap((row) => row.filter((value) => value !== undefined)));
      const colours = Array.from({ length: 256 }, (_, i) => scale.ramp(i / 255).match(/\d+/g).map(Number));
      const small = document.createElement("canvas");
      small.width = small.height = count;
      const pen = small.getContext("2d");
      const dots = pen.createImageData(count, count);
      table.forEach((row, i) => row.forEach((value, j) => {
        if (value === undefined) return;
        const [r, g, b] = colours[Math.round(255 * scale.place(value))];
        dots.data.set([r, g, b, 255], 4 * (i * count + j));
      }));
      pen.putImageData(dots, 0, 0);
      map.small = small;
      map.words.textContent = map.reading.sentence(head());
      map.canvas.setAttribute("aria-label", `${map.reading.label} of head ${head().layer}.${head().head}: queries down, keys across. Arrow keys go from pair to pair.`);
      const bar = element("canvas", { width: "120", height: "10", "aria-hidden": "true" });
      const ink = bar.getContext("2d");
      for (let i = 0; i < 120; i++) { ink.fillStyle = scale.paint(scale.low + (i / 119) * (scale.high - scale.low)); ink.fillRect(i, 0, 1, 10); }
      map.legend.replaceChildren(number(map.reading.key, scale.low), bar, number(map.reading.key, scale.high));
    }
  }
  function markRow(map, i) {
    if (!map.small) return;
    const count = window_().tokens.length;
    const side = Math.max(120, Math.min(map.frame.clientWidth || 300, 420));
    const sharp = window.devicePixelRatio || 1;
    map.canvas.width = map.canvas.height = Math.round(side * sharp);
    map.canvas.style.width = map.canvas.style.height = side + "px";
    const pen = map.canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(map.small, 0, 0, map.canvas.width, map.canvas.height);
    const cell = map.canvas.width / count;
    pen.fillStyle = colour("focus");
    for (const edge of [i * cell - 1.5 * sharp, (i + 1) * cell + 0.5 * sharp]) pen.fillRect(0, edge, map.canvas.width, sharp);
  }
  function cellOf(event, canvas) {
    const box = canvas.getBoundingClientRect();
    const count = window_().tokens.length;
    const [row, column] = [event.clientY - box.top, event.clientX - box.left].map((offset) => Math.floor((offset / box.width) * count));
    return row >= 0 && column >= 0 && row < count && column < count ? [row, column] : null;
  }
  function overMap(event, each, canvas, tip, frame) {
    const cell = cellOf(event, canvas);
    if (!cell) { tip.hidden = true; return; }
    if (hover !== cell[0]) { hover = cell[0]; if (held === null) paintRow(); }
    const box = canvas.getBoundingClientRect();
    tell(each, cell, tip, frame, event.clientX - box.left, event.clientY - box.top - 6);
  }
  function tell(each, [i, j], tip, frame, x, y) {
    const value = tables[each.key][i][j];
    tip.hidden = value === undefined;
    if (tip.hidden) return;
    tip.textContent = `${called(i)} looks at ${called(j)}: ${number(each.key, value)}`;
    const half = tip.offsetWidth / 2;
    tip.style.left = Math.min(Math.max(x, half), Math.max(half, frame.clientWidth - half)) + "px";
    tip.style.top = y + "px";
  }
  /** The same by keys: up and down choose the query, left and right one of the keys that it sees. */
  function overKeys(event, each, canvas, tip, frame) {
    const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity] }[event.key] || [];
    if (down === undefined) return;
    event.preventDefault();
    cursor = Math.max(0, Math.min(spans.length - 1, cursor + down));
    const [from, to] = span(head(), cursor, spans.length);
    seenKey = Math.max(from, Math.min(to, seenKey + across));
    hover = null;
    if (held !== null) held = cursor;
    paintRow();
    const side = canvas.clientWidth / spans.length;
    tell(each, [cursor, seenKey], tip, frame, (seenKey + 0.5) * side, cursor * side - 6);
    live.textContent = tip.textContent;
  }
  function rows() {
    return tables.logit.flatMap((row, i) => row.flatMap((logit, j) => (logit === undefined ? [] : [{ head: `${head().layer}.${head().head}`, query: window_().first + i, query_token: word(i), key: window_().first + j, key_token: word(j),
      probability: tables.probability[i][j], logit, due_to_position: tables.position[i][j] }])));
  }

  const redraw = () => { drawMaps(); paintRow(); };
  let width = 0;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; paintRow(); } }).observe(place);
  toposcope.theme.onChange(redraw);
  window.addEventListener("beforeprint", redraw);
  at.head = Math.max(0, window_().heads.findIndex((each) => options.first && `${each.layer}.${each.head}` === options.first));
  load();
  return {
    show: showHead,
    set(next) { windows = next; at = { window: 0, head: 0 }; hover = null; missing.hidden = true; load(); },
    state: () => ({ head: place.dataset.head, query: current(), held, tables }),
  };
};
