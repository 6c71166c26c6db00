/* Tokens moving in a plane, with a clock one can drag. They move once by themselves when they come into view, unless
   the reader wants no motion or has touched the clock.

   toposcope.particles(place, { times: [T], xy: [T][N][2], norms: [T], label })  ->  { show(frame), play(), pause(), set(data) } */
toposcope.particles = (place, given) => {
  const { element, colour, ramp } = toposcope;
  let data = given;
  let frame = 0;
  let running = null;
  const canvas = element("canvas", { role: "img", "aria-label": given.label || "tokens moving in a plane" });
  const slider = element("input", { type: "range", min: "0", value: "0", step: "1", "aria-label": "time" });
  const button = element("button", { type: "button" }, "Play");
  const clock = element("output", {});
  const size = element("span", { class: "size" });
  place.classList.add("particles");
  place.append(canvas, element("div", { class: "row" }, button, slider, clock, size));
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  function draw() {
    const width = Math.max(160, place.clientWidth);
    const height = Math.min(width, given.height || 380);
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, height);
    const { xy, times } = data;
    const reach = 1.08 * Math.max(1e-9, ...xy.map((cloud) => Math.max(...cloud.map(([x, y]) => Math.max(Math.abs(x), Math.abs(y))))));
    const unit = Math.min(width, height) / 2 / reach;
    const x = (value) => width / 2 + value * unit;
    const y = (value) => height / 2 - value * unit;
    pen.strokeStyle = colour("line");
    pen.beginPath(); pen.moveTo(0, height / 2); pen.lineTo(width, height / 2); pen.moveTo(width / 2, 0); pen.lineTo(width / 2, height); pen.stroke();
    const count = xy[0].length;
    const paint = ramp([colour("converges"), colour("bounded"), colour("not_convergent")]);
    const first = Math.max(0, frame - 14);
    for (let i = 0; i < count; i++) {
      const ink = paint(count > 1 ? i / (count - 1) : 0);
      pen.strokeStyle = ink; pen.globalAlpha = 0.45; pen.lineWidth = 1.3;
      pen.beginPath();
      for (let t = first; t <= frame; t++) pen.lineTo(x(xy[t][i][0]), y(xy[t][i][1]));
      pen.stroke();
      pen.globalAlpha = 1; pen.fillStyle = ink; pen.strokeStyle = colour("card"); pen.lineWidth = 1;
      pen.beginPath(); pen.arc(x(xy[frame][i][0]), y(xy[frame][i][1]), 4.5, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    }
    slider.max = String(times.length - 1);
    slider.value = String(frame);
    clock.textContent = "t = " + Number(times[frame].toPrecision(3));
    const factor = (data.norms || [])[frame];
    size.textContent = factor === undefined ? "" : "norm ×" + (factor >= 1000 && factor < 1e6 ? Math.round(factor).toLocaleString("en-US") : Number(factor.toPrecision(3)));
    slider.setAttribute("aria-valuetext", [clock.textContent, size.textContent].filter(Boolean).join(", "));
  }
  const watch = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { still(); play(); } }, { threshold: 0.6 });
  /** From now on it moves only when asked to. */
  function still() { watch.disconnect(); }
  function show(number) { frame = Math.max(0, Math.min(data.times.length - 1, number)); draw(); }
  function pause() { if (running) clearInterval(running); running = null; button.textContent = "Play"; }
  function play() {
    if (frame >= data.times.length - 1) frame = 0;
    button.textContent = "Pause";
    running = setInterval(() => { show(frame + 1); if (frame >= data.times.length - 1) pause(); }, calm ? 200 : 60);
  }
  button.addEventListener("click", () => { still(); if (running) pause(); else play(); });
  slider.addEventListener("input", () => { still(); pause(); show(Number(slider.value)); });
  new ResizeObserver(draw).observe(place);
  toposcope.theme.onChange(draw);
  window.addEventListener("beforeprint", draw);
  draw();
  if (!calm) watch.observe(canvas);
  return { show(number) { still(); show(number); }, play, pause, set(next) { data = next; show(Math.min(frame, next.times.length - 1)); } };
};
