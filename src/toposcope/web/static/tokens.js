/* Tokens moving in two or three dimensions, with a clock to drag; frames lie at any times and are joined by straight lines.

   toposcope.tokens(place)  ->  { set(flow), play(), pause(), at(time) } */
toposcope.tokens = (place) => {
  const { element, colour, ramp, show } = toposcope;
  const canvas = element("canvas", { role: "img", "aria-label": "tokens" });
  const play = element("button", { type: "button", id: "play" }, "Play");
  const clock = element("input", { type: "range", id: "time", min: 0, max: 1000, step: 1, value: 0 });
  const reading = element("output", { for: "time", id: "reading" });
  const turn = element("input", { type: "range", id: "turn", min: -180, max: 180, step: 1, value: 30 });
  const tilt = element("input", { type: "range", id: "tilt", min: -90, max: 90, step: 1, value: 22 });
  const zoom = element("select", { id: "zoom" },
    element("option", { value: "follow" }, "follows the largest token"), element("option", { value: "start" }, "as at the start"), element("option", { value: "most" }, "shows the whole path"));
  const views = element("div", { class: "row views" },
    element("label", { class: "field", for: "turn" }, "Look from the side", turn), element("label", { class: "field", for: "tilt" }, "Look from above", tilt));
  place.append(element("div", { class: "particles" }, canvas,
    element("div", { class: "row" }, play, element("label", { class: "field grow", for: "time" }, element("span", { class: "visually-hidden" }, "Time"), clock), reading),
    views, element("label", { class: "field", for: "zoom" }, "Scale", zoom)));
  let flow = null;
  let time = 0;
  let moving = null;
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  /** The tokens at a time, in their own units: between two frames along a straight line. */
  function cloud(at) {
    const { times, frames, sizes, unit } = flow;
    let after = times.findIndex((t) => t >= at);
    if (after < 0) after = times.length - 1;
    const before = Math.max(0, after - 1);
    const span = times[after] - times[before];
    const share = span > 0 ? Math.min(1, Math.max(0, (at - times[before]) / span)) : 1;
    const a = sizes[before] / unit, b = sizes[after] / unit;
    return { values: frames[after].map((v, i) => (1 - share) * frames[before][i] * a + share * v * b), size: Math.max(1e-300, (1 - share) * sizes[before] + share * sizes[after]) };
  }
  function projector() {
    if (flow.dims < 3) return (values, i) => [values[flow.dims * i], flow.dims > 1 ? values[flow.dims * i + 1] : 0];
    const a = Number(turn.value) * Math.PI / 180, b = Number(tilt.value) * Math.PI / 180;
    const ca = Math.cos(a), sa = Math.sin(a), cb = Math.cos(b), sb = Math.sin(b);
    return (values, i) => {
      const x = values[3 * i], y = values[3 * i + 1], z = values[3 * i + 2];
      return [ca * x - sa * y, cb * z + sb * (sa * x + ca * y)];
    };
  }
  function draw() {
    if (!flow) return;
    const width = Math.max(200, place.clientWidth);
    const height = Math.min(width, 460);
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, height);
    const now = cloud(time);
    const reach = 1.12 * (zoom.value === "follow" ? now.size : zoom.value === "start" ? flow.sizes[0] || 1 : Math.max(...flow.sizes));
    const unit = Math.min(width, height) / 2 / reach;
    const place2 = projector();
    const at = (values, i) => { const [x, y] = place2(values, i); return [width / 2 + unit * x, height / 2 - unit * y]; };
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    if (flow.dims < 3) {
      pen.beginPath(); pen.moveTo(0, height / 2); pen.lineTo(width, height / 2); pen.moveTo(width / 2, 0); pen.lineTo(width / 2, height); pen.stroke();
    } else {
      const axes = [reach, 0, 0, 0, reach, 0, 0, 0, reach], back = axes.map((v) => -v);
      for (let i = 0; i < 3; i++) { pen.beginPath(); pen.moveTo(...at(axes, i)); pen.lineTo(...at(back, i)); pen.stroke(); }
    }
    pen.beginPath(); pen.arc(width / 2, height / 2, 2.5, 0, 2 * Math.PI); pen.fillStyle = colour("faint"); pen.fill();
    const count = flow.tokens;
    const paint = ramp([colour("converges"), colour("bounded"), colour("not_convergent")]);
    const first = flow.times.findIndex((t) => t > time);
    const last = first < 0 ? flow.times.length : first;
    const tail = Math.max(0, last - 24);
    for (let i = 0; i < count; i++) {
      const ink = paint(count > 1 ? i / (count - 1) : 0);
      pen.strokeStyle = ink; pen.globalAlpha = 0.4; pen.lineWidth = 1.2;
      pen.beginPath();
      for (let k = tail; k < last; k++) { const scale = flow.sizes[k] / flow.unit; const [x, y] = place2(flow.frames[k], i); pen.lineTo(width / 2 + unit * scale * x, height / 2 - unit * scale * y); }
      const [x, y] = at(now.values, i);
      pen.lineTo(x, y);
      pen.stroke();
      pen.globalAlpha = 1; pen.fillStyle = ink; pen.strokeStyle = colour("card"); pen.lineWidth = 1;
      pen.beginPath(); pen.arc(x, y, count > 64 ? 3 : 4.5, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    }
    pen.fillStyle = colour("soft"); pen.font = "12px " + colour("sans"); pen.textAlign = "left";
    pen.fillText(`largest |x| = ${show(now.size)}`, 10, height - 12);
    reading.textContent = "t = " + Number(time.toPrecision(3));
    clock.value = String(Math.round(1000 * time / (flow.end || 1)));
    clock.setAttribute("aria-valuetext", reading.textContent);
    canvas.setAttribute("aria-label", `${count} tokens at ${reading.textContent}, the largest of size ${show(now.size)}`);
  }
  function pause() { if (moving) cancelAnimationFrame(moving); moving = null; play.textContent = "Play"; }
  function start() {
    if (!flow) return;
    if (time >= flow.end) time = 0;
    play.textContent = "Pause";
    let before = null;
    const seconds = calm ? 14 : 7;
    const step = (now) => {
      if (before !== null) time = Math.min(flow.end, time + flow.end * (now - before) / 1000 / seconds);
      before = now;
      draw();
      if (time >= flow.end) { pause(); return; }
      moving = requestAnimationFrame(step);
    };
    moving = requestAnimationFrame(step);
  }
  play.addEventListener("click", () => (moving ? pause() : start()));
  clock.addEventListener("input", () => { pause(); time = flow ? flow.end * Number(clock.value) / 1000 : 0; draw(); });
  for (const each of [turn, tilt, zoom]) each.addEventListener("input", draw);
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { if (flow?.dims === 3) { held = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    turn.value = String((Number(turn.value) + (event.clientX - held[0]) / 2 + 540) % 360 - 180);
    tilt.value = String(Math.max(-90, Math.min(90, Number(tilt.value) + (event.clientY - held[1]) / 2)));
    held = [event.clientX, event.clientY];
    draw();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
  new ResizeObserver(draw).observe(place);
  toposcope.theme.onChange(draw);
  return {
    /** A new flow; the clock stays where it was, as a share of the run. */
    set(next) {
      const share = flow && flow.end ? time / flow.end : 0;
      const end = next.times.at(-1);
      flow = { ...next, end };
      time = share * end;
      views.hidden = flow.dims < 3;
      draw();
    },
    play: start, pause,
    at(wanted) { pause(); time = wanted; draw(); },
  };
};
