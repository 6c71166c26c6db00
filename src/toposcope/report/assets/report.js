/* Brings a report to life: charts, maps, the page of a head, moving pictures, sorting and downloads. */
(() => {
  const { element, show, theme, save, saveButtons } = toposcope;
  const page = JSON.parse(document.getElementById("data").textContent);
  page.attention = Object.keys(page.blocks).find((name) => page.blocks[name].kind === "attention");
  const maps = {};
  const chosen = { head: null, attention: null, open: null }; // the head that is open, its attention, and how another is opened
  const python = page.python.length ? ["import toposcope", ...page.python].join("\n") : null;

  /** A series that page.py packed: its largest number, and shares of it. */
  function unpacked(text) {
    const seen = new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
    const largest = seen.getFloat32(0, true);
    return Array.from({ length: (seen.byteLength - 4) / 2 }, (_, i) => Number(((seen.getInt16(4 + 2 * i, true) / 32767) * largest).toPrecision(5)));
  }
  /** The rows of a table; what is packed in it is unpacked where it is asked for. */
  function rowsOf(name) {
    const columns = Object.entries(page.tables[name]);
    const packed = new Set(page.packed[name]);
    const count = columns.length ? columns[0][1].length : 0;
    return Array.from({ length: count }, (_, i) => {
      const row = Object.fromEntries(columns.filter(([key]) => !packed.has(key)).map(([key, values]) => [key, values[i]]));
      for (const key of packed) Object.defineProperty(row, key, { enumerable: true, get: () => unpacked(page.tables[name][key][i]) });
      return row;
    });
  }
  /** A table as it is handed out: its columns, with nothing packed. */
  const columnsOf = (name) => Object.fromEntries(Object.entries(page.tables[name]).map(([key, values]) => [key, page.packed[name]?.includes(key) ? values.map(unpacked) : values]));
  /** Rows without the cells that hold lists: those are handed out with the chart that shows them. */
  const flat = (rows) => rows.map((row) => Object.fromEntries(Object.entries(row).filter(([, value]) => !Array.isArray(value))));
  const canvasOf = (here) => async () => here.querySelector(".heat canvas").toDataURL("image/png");
  const place = (name) => document.querySelector(`#${CSS.escape(name)} .picture`);

  // -------------------------------------------------------------- charts and matrices
  async function drawChart(name, block) {
    const here = place(name);
    const box = element("div", { class: "chart", "data-label": `${block.title}. ${block.sentence}` });
    let view = null;
    here.append(box, saveButtons(block.title, () => rowsOf(block.table), { image: () => view.toImageURL("png", 2), python }));
    view = await toposcope.chart(box, block.spec, rowsOf(block.table));
  }
  function drawMatrix(name, block) {
    const here = place(name);
    const measures = block.measures.map((measure) => ({ ...measure, values: block.values[measure.key] }));
    maps[name] = toposcope.heatmap(here, { name, label: `${block.title}. ${block.sentence}`, rows: block.rows, columns: block.columns, rowName: block.row_name, columnName: block.column_name, measures, cell: 26, square: block.square });
    const rows = () => block.rows.flatMap((row, i) => block.columns.map((column, j) => ({
      [block.row_name]: row, [block.column_name]: column, ...Object.fromEntries(block.measures.map((each) => [each.key, block.values[each.key][i][j] ?? null])) })));
    here.append(saveButtons(block.title, rows, { image: canvasOf(here), python }));
  }
  function drawParticles(name, block) {
    const here = place(name);
    const inner = element("div");
    here.append(inner);
    maps[name] = toposcope.particles(inner, { times: block.times, xy: block.xy, norms: block.norms, label: `${block.title}. ${block.sentence}` });
    here.append(saveButtons(block.title, () => block.times.flatMap((time, t) => block.xy[t].map(([x, y], token) => ({ time, token, x, y })))));
  }

  function drawAttention(name, block) {
    const here = place(name);
    const missing = (head) => `The attention of head ${head} is not kept in this page. To see it: ${block.others.replace("{head}", head)}`;
    chosen.attention = maps[name] = toposcope.attention(here, { name, label: block.title, windows: block.windows, missing, first: chosen.head, choose: (layer, head) => chosen.open?.(`${layer}.${head}`) });
  }

  // -------------------------------------------------------------- heads
  function drawHeads(name, block) {
    const here = place(name);
    const rows = rowsOf(block.table);
    const layers = [...new Set(rows.map((row) => row.layer))];
    const heads = [...new Set(rows.map((row) => row.head))].sort((a, b) => a - b);
    const index = new Map(rows.map((row, i) => [`${row.layer}.${row.head}`, i]));
    const grid = (key) => layers.map((layer) => heads.map((head) => rows[index.get(`${layer}.${head}`)]?.[key]));
    const panel = document.getElementById(name + "-head");
    const open = (i, jump, quiet) => { if (!quiet) { chosen.head = `${rows[i].layer}.${rows[i].head}`; chosen.attention?.show(rows[i].layer, rows[i].head); } if (panel) drawHead(panel, block, rows, i, (next) => { select(next); open(next, false); }, jump); };
    const select = (i) => maps[name].select(layers.indexOf(rows[i].layer), heads.indexOf(rows[i].head));
    maps[name] = toposcope.heatmap(here, {
      name, label: `${block.title}. ${block.sentence}`, rows: layers, columns: heads, rowName: "layer", columnName: "head",
      measures: block.measures.map((measure) => ({ ...measure, values: grid(measure.key), sure: measure.faded_unless ? grid(measure.faded_unless) : null })),
      choose: panel ? (row, column) => { const i = index.get(`${layers[row]}.${heads[column]}`); if (i !== undefined) { history.replaceState(null, "", `#head-${layers[row]}.${heads[column]}`); open(i, true); } } : null,
    });
    here.append(saveButtons(block.title, () => flat(rows), { image: canvasOf(here), python }));
    if (!panel || !rows.length) return;
    const fromAddress = () => {
      const asked = /^#head-(\d+\.\d+)$/.exec(location.hash);
      if (asked && index.has(asked[1])) { select(index.get(asked[1])); open(index.get(asked[1]), true); return true; }
      return false;
    };
    window.addEventListener("hashchange", fromAddress);
    chosen.open ??= (name) => { if (index.has(name)) { select(index.get(name)); open(index.get(name), false); } };
    if (!fromAddress()) {
      const first = Math.max(0, rows.findIndex((row) => row.shown_first));
      select(first);
      open(first, false, chosen.head !== null); // the first map of a page says whose attention is shown
    }
  }

  async function drawHead(panel, block, rows, i, go, jump) {
    const row = rows[i];
    const title = element("h3", {});
    if (row.verdict) { title.append(element("span", { class: "dot " + row.verdict })); }
    title.append(`Layer ${row.layer}, head ${row.head}`);
    const facts = element("dl", { class: "pairs" });
    for (const fact of block.facts) {
      if (row[fact.key] === undefined || row[fact.key] === null || row[fact.key] === "") continue;
      facts.append(element("dt", {}, fact.heading), element("dd", {}, show(row[fact.key], fact.show)));
    }
    const step = (to, words) => element("button", { type: "button", disabled: to < 0 || to >= rows.length, onclick: () => go(to) }, words);
    panel.dataset.head = `${row.layer}.${row.head}`;
    panel.replaceChildren(element("div", { class: "row" }, title, element("span", { class: "push row" }, step(i - 1, "Previous"), step(i + 1, "Next"))),
      element("p", {}, row.says || ""), ...(page.attention ? [element("p", {}, element("a", { href: "#" + page.attention }, "Its attention on the text"))] : []));
    if (jump && panel.getBoundingClientRect().top > window.innerHeight * 0.8) panel.scrollIntoView({ block: "nearest" });
    for (const chart of block.charts) {
      const lists = Object.entries(chart.lists).map(([field, key]) => [field, row[key]]);
      const length = lists[0][1]?.length ?? 0;
      if (!length) continue;
      const own = Array.from({ length }, (_, n) => ({ ...(chart.index ? { [chart.index]: n + (row[chart.start] ?? 0) } : {}), ...Object.fromEntries(lists.map(([field, values]) => [field, values[n]])) }));
      if (chart.mirror) own.push(...own.filter((each) => each[chart.mirror] > 0).map((each) => ({ ...each, [chart.mirror]: -each[chart.mirror] })));
      const box = element("div", { class: "chart", "data-label": `${chart.title}. ${chart.sentence}` });
      panel.append(element("h4", {}, chart.title), element("p", { class: "small soft" }, chart.sentence), box,
        saveButtons(`${chart.title} ${row.layer}.${row.head}`, () => own));
      await toposcope.chart(box, chart.spec, own);
      if (panel.dataset.head !== `${row.layer}.${row.head}`) return; // another head was chosen meanwhile
    }
    panel.append(element("h4", {}, row.certified === undefined ? "Numbers" : "Certificate and numbers"), facts);
  }

  // -------------------------------------------------------------- tables, contents, downloads
  for (const spot of document.querySelectorAll(".save-here")) spot.append(saveButtons(spot.dataset.table, () => flat(rowsOf(spot.dataset.table)), { python }));
  document.getElementById("save-all").addEventListener("click", () => {
    save("toposcope-results.json", JSON.stringify({ results: page.results, tables: Object.fromEntries(Object.keys(page.tables).map((name) => [name, columnsOf(name)])) }, null, 1), "application/json");
  });
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    table.querySelectorAll("thead th").forEach((heading, column) => {
      const button = element("button", { type: "button" }, ...heading.childNodes);
      heading.replaceChildren(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
        table.querySelectorAll("thead th").forEach((each) => each.setAttribute("aria-sort", "none"));
        heading.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const value = (line) => { const cell = line.cells[column]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => { const [x, y] = [value(a), value(b)]; return typeof x === typeof y ? (x < y ? -sign : x > y ? sign : 0) : typeof x === "number" ? -1 : 1; }));
      });
    });
  }
  const links = new Map([...document.querySelectorAll("nav.toc a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));

  // -------------------------------------------------------------- paper: what is folded is printed too
  let folded = [];
  window.addEventListener("beforeprint", () => { folded = [...document.querySelectorAll("details:not([open])")]; for (const each of folded) each.open = true; });
  window.addEventListener("afterprint", () => { for (const each of folded.splice(0)) each.open = false; });

  theme.start();
  const draw = { attention: drawAttention, chart: drawChart, matrix: drawMatrix, headmap: drawHeads, particles: drawParticles };
  (async () => {
    for (const [name, block] of Object.entries(page.blocks)) await draw[block.kind](name, block);
    document.documentElement.dataset.ready = "yes";
  })();
  toposcope.page = { data: page, maps, rowsOf };
})();
