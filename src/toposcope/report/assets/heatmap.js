/* A heat map on a canvas: layer x head maps and matrices. Arrow keys walk through it, Enter or a click chooses.

   toposcope.heatmap(place, {
     rows, columns: labels; rowName, columnName: what they count;
     measures: [{ label, kind: "sequential" | "diverging" | "category", values: rows of numbers (or words, or null),
                  words: {word: letter}, format, sentence, low, high, sure: rows of booleans, where false is drawn pale }];
     square: cells as high as wide; choose(row, column): called when a cell is chosen; name: of the switch })  ->  { select(row, column), draw() } */
toposcope.heatmap = (place, options) => {
  const { element, show, colour, inkOn } = toposcope;
  const { rows, columns, measures } = options;
  let measure = measures[0];
  let chosen = null;
  let cursor = [0, 0];
  let shape = { left: 0, top: 0, width: 1, height: 1 };

  const hint = element("p", { class: "visually-hidden", id: options.name + "-hint" },
    "Move with the arrow keys" + (options.choose ? ", choose with Enter." : ".") + " The same numbers are in the table below or in the data.");
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-label": options.label, "aria-describedby": options.name + "-hint" });
  const tip = element("div", { class: "tip", hidden: true });
  const live = element("div", { class: "visually-hidden", "aria-live": "polite" });
  const sentence = element("p", { class: "small soft" });
  const legend = element("div", { class: "legend" });
  const frame = element("div", { class: "heat" }, canvas, tip);
  if (measures.length > 1) {
    place.append(element("fieldset", { class: "segments" }, element("legend", {}, "Show"),
      ...measures.map((each, i) => element("label", {},
        element("input", { type: "radio", name: options.name + "-measure", value: String(i), checked: i === 0,
          onchange: () => { measure = each; draw(); } }), each.label))));
  }
  place.append(hint, sentence, frame, legend, live);

  /** The colour of a word: the stylesheet's where it has one, else the palette's. */
  const paintWord = (word) => (word === "none" ? colour("wash") : colour(word) || toposcope.palette[Object.keys(measure.words).indexOf(word) % toposcope.palette.length] || colour("faint"));

  function scale() {
    const found = measure.values.flat().filter((value) => typeof value === "number");
    let low = measure.low ?? Math.min(...found);
    let high = measure.high ?? Math.max(...found);
    if (measure.kind === "diverging") {
      const middle = measure.middle ?? 0;
      const reach = Math.max(Math.abs(low - middle), Math.abs(high - middle));
      [low, high] = [middle - reach, middle + reach];
    }
    if (!(high > low)) { high = low + 1; }
    const signed = toposcope.diverging();
    const paint = measure.kind !== "diverging" ? toposcope.sequential() : measure.harm ? (share) => signed(1 - share) : signed;
    const log = measure.kind === "logarithmic" && low >= 0;
    const from = low > 0 ? 0 : 1; // whole numbers from 0: the step from 0 to 1 is seen as well
    const at = log ? (value) => Math.log((value + from) / (low + from)) / Math.log((high + from) / (low + from)) : (value) => (value - low) / (high - low);
    return { low, high, at: (value) => paint(at(value)), paint };
  }

  function draw() {
    const space = Math.max(120, frame.clientWidth || place.clientWidth || 320);
    const gutter = 12 + 7 * Math.max(1, ...rows.map((label) => String(label).length));
    const most = options.cell ?? 52;
    const width = Math.max(1.5, Math.min(most, (space - gutter - 2) / columns.length));
    const height = options.square ? width : Math.min(width, Math.min(24, Math.max(width * 0.62, 15)));
    const top = 20;
    shape = { left: gutter, top, width, height };
    const across = gutter + width * columns.length + 2;
    const down = top + height * rows.length + 3;
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(across * sharp);
    canvas.height = Math.round(down * sharp);
    canvas.style.width = across + "px";
    canvas.style.height = down + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, across, down);
    pen.font = "11px " + colour("sans");
    pen.textBaseline = "middle";
    pen.fillStyle = colour("soft");
    const every = (size, text) => Math.max(1, Math.ceil(text / size));
    pen.textAlign = "right";
    rows.forEach((label, i) => { if (i % every(height, 13) === 0) pen.fillText(label, gutter - 5, top + (i + 0.5) * height); });
    pen.textAlign = "center";
    const wide = 10 + 7 * Math.max(1, ...columns.map((label) => String(label).length));
    columns.forEach((label, j) => { if (j % every(width, wide) === 0) pen.fillText(label, Math.min(gutter + (j + 0.5) * width, across - pen.measureText(label).width / 2), 9); });
    const gap = width > 9 ? 1 : 0;
    const known = measure.kind === "category" ? null : scale();
    pen.font = `600 ${Math.min(12, height * 0.66)}px ${colour("sans")}`;
    measure.values.forEach((line, i) => line.forEach((value, j) => {
      if (value === undefined) return;
      const fill = value === null ? colour("wash") : known ? known.at(value) : paintWord(value);
      const faded = measure.sure?.[i]?.[j] === false;
      pen.fillStyle = fill;
      pen.globalAlpha = faded ? 0.4 : 1;
      pen.fillRect(gutter + j * width, top + i * height, width - gap, height - gap);
      pen.globalAlpha = 1;
      if (!known && value !== null && width >= 11) {
        pen.fillStyle = faded ? colour("ink") : inkOn(fill);
        pen.fillText(measure.words[value] ?? "", gutter + (j + 0.5) * width - gap / 2, top + (i + 0.5) * height);
      }
    }));
    if (chosen) mark(pen, chosen, colour("ink"), 2.5);
    if (canvas.getRootNode().activeElement === canvas) mark(pen, cursor, colour("focus"), 2.5);
    sentence.textContent = measure.sentence || "";
    sentence.hidden = !measure.sentence;
    drawLegend(known);
  }

  function mark(pen, [row, column], ink, thick) {
    pen.strokeStyle = ink;
    pen.lineWidth = thick;
    pen.strokeRect(shape.left + column * shape.width, shape.top + row * shape.height, shape.width - 1, shape.height - 1);
  }

  function drawLegend(known) {
    if (!known) {
      const used = new Set(measure.values.flat());
      legend.replaceChildren(element("ul", {}, ...Object.entries(measure.words).filter(([word]) => used.has(word)).map(([word, letter]) => {
        const dot = element("span", { class: "dot" });
        dot.style.background = paintWord(word);
        return element("li", {}, dot, `${letter} ${show(word)}`);
      })));
      return;
    }
    const bar = element("canvas", { width: "120", height: "10", "aria-hidden": "true" });
    const pen = bar.getContext("2d");
    for (let i = 0; i < 120; i++) { pen.fillStyle = known.paint(i / 119); pen.fillRect(i, 0, 1, 10); }
    legend.replaceChildren(show(known.low, measure.format), bar, show(known.high, measure.format) + (measure.kind === "logarithmic" ? " (logarithmic)" : ""));
  }

  function words([row, column]) {
    const value = measure.values[row]?.[column];
    return `${options.rowName} ${rows[row]}, ${options.columnName} ${columns[column]}: ${value === undefined ? "none" : show(value, measure.format)}`;
  }
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - shape.left) / shape.width);
    const row = Math.floor((event.clientY - box.top - shape.top) / shape.height);
    return row >= 0 && column >= 0 && row < rows.length && column < columns.length && measure.values[row][column] !== undefined ? [row, column] : null;
  }
  function point(cell) {
    tip.hidden = !cell;
    if (!cell) return;
    tip.textContent = words(cell);
    const middle = shape.left + (cell[1] + 0.5) * shape.width;
    const half = tip.offsetWidth / 2;
    tip.style.left = Math.min(Math.max(middle, half), Math.max(half, frame.clientWidth - half)) + "px";
    tip.style.top = shape.top + cell[0] * shape.height + "px";
  }
  function choose(cell) {
    if (!options.choose) return;
    chosen = cell;
    draw();
    options.choose(...cell);
  }

  canvas.addEventListener("mousemove", (event) => point(cellAt(event)));
  canvas.addEventListener("mouseleave", () => point(null));
  canvas.addEventListener("click", (event) => { const cell = cellAt(event); if (cell) { cursor = cell; choose(cell); } });
  canvas.addEventListener("focus", () => { draw(); live.textContent = words(cursor); });
  canvas.addEventListener("blur", () => { draw(); point(null); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in steps) {
      cursor = cursor.map((at, i) => Math.min((i ? columns : rows).length - 1, Math.max(0, at + steps[event.key][i])));
    } else if (event.key === "Home") cursor = [cursor[0], 0];
    else if (event.key === "End") cursor = [cursor[0], columns.length - 1];
    else if (event.key === "Enter" || event.key === " ") { if (measure.values[cursor[0]][cursor[1]] !== undefined) choose(cursor); }
    else return;
    event.preventDefault();
    draw();
    point(cursor);
    live.textContent = words(cursor);
  });
  if (options.choose) canvas.style.cursor = "pointer";
  new ResizeObserver(draw).observe(frame);
  toposcope.theme.onChange(draw);
  window.addEventListener("beforeprint", draw);
  draw();
  return {
    draw,
    select(row, column) { chosen = [row, column]; cursor = chosen; draw(); },
    /** Where a cell is on the screen: for tests and for arrows drawn by others. */
    centre([row, column]) { const box = canvas.getBoundingClientRect(); return [box.left + shape.left + (column + 0.5) * shape.width, box.top + shape.top + (row + 0.5) * shape.height]; },
  };
};
