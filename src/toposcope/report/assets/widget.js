/* The widget of a notebook: a head map and, where a result has it, attention with its tokens.

   toposcope.widget(place, model): `model` is anywidget's, with `data` as report/widget.py makes it, and `head`. */
toposcope.widget = (place, model) => {
  const { element } = toposcope;
  const { map, attention } = model.get("data");
  const name = "toposcope-" + Math.random().toString(36).slice(2);
  const here = element("div", { class: "card" });
  place.append(here);
  let view = null;
  let heads = null;
  const choose = (head) => { if (model.get("head") !== head) { model.set("head", head); model.save_changes(); } };

  if (map) {
    const { columns } = map;
    const names = columns.layer.map((layer, i) => `${layer}.${columns.head[i]}`);
    const layers = [...new Set(columns.layer)];
    const across = [...new Set(columns.head)].sort((a, b) => a - b);
    const index = new Map(names.map((each, i) => [each, i]));
    const grid = (key) => layers.map((layer) => across.map((head) => columns[key][index.get(`${layer}.${head}`)]));
    const says = element("p", { "aria-live": "polite" });
    const picture = element("div");
    picture.style.marginBottom = ".6rem";
    here.append(element("h3", {}, map.title), element("p", { class: "small soft" }, map.sentence), picture, says);
    const drawn = toposcope.heatmap(picture, {
      name: name + "-map", label: `${map.title}. ${map.sentence}`, rows: layers, columns: across, rowName: "layer", columnName: "head",
      measures: map.measures.map((measure) => ({ ...measure, values: grid(measure.key) })),
      choose: (row, column) => { if (index.has(`${layers[row]}.${across[column]}`)) choose(`${layers[row]}.${across[column]}`); },
    });
    heads = {
      first: names[Math.max(0, (columns.shown_first ?? []).indexOf(true))],
      has: (head) => index.has(head),
      show(head) {
        const i = index.get(head);
        drawn.select(layers.indexOf(columns.layer[i]), across.indexOf(columns.head[i]));
        says.replaceChildren(element("b", {}, `Head ${head}. `), columns.says?.[i] ?? "");
      },
    };
  }
  if (attention) {
    const below = element("div");
    here.append(element("h3", {}, "Which token looks at which"), below);
    const missing = (head) => `The attention of head ${head} is not kept. To see it: trace(..., logits="${head}")`;
    view = toposcope.attention(below, { name, label: "attention", windows: attention.windows, missing, first: heads?.first, choose: (layer, head) => choose(`${layer}.${head}`) });
  }
  function shown() {
    const head = model.get("head");
    if (!/^\d+\.\d+$/.test(head)) return;
    if (heads?.has(head)) heads.show(head);
    view?.show(...head.split(".").map(Number));
    here.dataset.head = head;
  }
  model.on("change:head", shown);
  if (!model.get("head")) choose(heads ? heads.first : view.state().head);
  shown();
};
