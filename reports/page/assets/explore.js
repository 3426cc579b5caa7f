// The runs of a sweep, linked: scatter with the front, heat map, curves, comparison of two pinned runs, table.

function explore(section) {
  const columns = section.columns, index = Object.fromEntries(columns.map((column, i) => [column.name, i]));
  const of = (name) => columns[index[name]];
  const value = (row, name) => row[index[name]];
  const rows = section.rows.map((cells, i) => ({ i, cells }));
  const cell = (row, name) => row.cells[index[name]];
  const keys = section.keys, seed = section.seed, free = keys.filter((key) => key !== seed);
  const levels = Object.fromEntries(keys.map((key) => [key, [...new Set(rows.map((row) => cell(row, key)))].sort(order)]));
  const state = { ...section.start, pins: [], hidden: {}, bound: true, onlyFront: false, near: null, sort: null, down: false };
  const numbers = columns.filter((column) => column.number).map((column) => [column.name, titled(column), column.group]);
  const parts = {};

  const visible = () => rows.filter((row) => keys.every((key) => !state.hidden[key]?.has(cell(row, key))));
  const setting = (key, level) => `${of(key).short} ${shown(of(key), level)}${of(key).divisor === 1 || level === null ? "" : ` ${of(key).unit.split(" ")[0]}`}`;
  const words = (row) => keys.map((key) => setting(key, cell(row, key))).join(", ") || `run ${row.i}`;
  const colour = (row) => (state.colour ? COLOURS[levels[state.colour].indexOf(cell(row, state.colour)) % COLOURS.length] : COLOURS[0]);
  const shape = (row) => (state.shape ? SHAPES[levels[state.shape].indexOf(cell(row, state.shape)) % SHAPES.length] : "circle");

  function pin(row) {
    state.pins = state.pins.includes(row) ? state.pins.filter((other) => other !== row) : [...state.pins, row].slice(-2);
    update();
  }

  function describe(row) {
    return [words(row), ...[state.x, state.y].map((name) => `${of(name).label}: ${shown(of(name), cell(row, name))} ${of(name).unit}`),
      ...section.tips.filter((name) => name !== state.x && name !== state.y && cell(row, name) !== null)
        .map((name) => `${of(name).label}: ${shown(of(name), cell(row, name))} ${of(name).unit}`)];
  }

  function front(list) {
    const signs = [state.x, state.y].map((name) => (of(name).better === "higher" ? -1 : 1));
    const at = (row) => [cell(row, state.x) * signs[0], cell(row, state.y) * signs[1]];
    const usable = list.filter((row) => Number.isFinite(cell(row, state.x)) && Number.isFinite(cell(row, state.y)) && cell(row, state.x) !== null && cell(row, state.y) !== null);
    return usable.filter((row) => {
      const [a, b] = at(row);
      return !usable.some((other) => { const [c, d] = at(other); return c <= a && d <= b && (c < a || d < b); });
    });
  }

  const repeats = (row) => (seed ? rows.filter((other) => free.every((key) => cell(other, key) === cell(row, key))) : [row]);

  // The runs at these settings: a run a seed; their mean, least and most.
  function settled(settings, metric) {
    const found = rows.filter((row) => free.every((key) => cell(row, key) === settings[key]) && Number.isFinite(cell(row, metric.name)) && cell(row, metric.name) !== null);
    if (!found.length) return null;
    const values = found.map((row) => cell(row, metric.name) / metric.divisor);
    return { row: found[0], runs: found.length, mean: values.reduce((sum, one) => sum + one, 0) / found.length, low: Math.min(...values), high: Math.max(...values) };
  }

  function spread(one) {
    return one.runs > 1 ? `mean of ${one.runs} seeds ${short(one.mean)}, from ${short(one.low)} to ${short(one.high)}` : "";
  }

  function scatter() {
    const list = visible(), best = front(list), drawn = state.onlyFront ? best : list;
    const x = of(state.x), y = of(state.y);
    const { svg, box } = canvas(`${titled(y)} over ${titled(x)}, ${drawn.length} runs. Arrow keys go from run to run, Enter pins.`, 460);
    const xs = scale(drawn.map((row) => cell(row, x.name) / x.divisor), box.left, box.right);
    const ys = scale(drawn.map((row) => cell(row, y.name) / y.divisor), box.bottom, box.top);
    svg.append(axes(box, xs, ys, `${titled(x)}, ${x.better} is better`, `${titled(y)}, ${y.better} is better`));
    const place = (row) => [xs.at(cell(row, x.name) / x.divisor), ys.at(cell(row, y.name) / y.divisor)];
    const line = [...best].sort((a, b) => cell(a, x.name) - cell(b, x.name)).map((row) => place(row).map((v) => v.toFixed(1)).join(","));
    if (line.length > 1) svg.append(make("path", { class: "front", d: `M${line.join("L")}` }));
    const sorted = drawn.filter((row) => Number.isFinite(place(row)[0]) && Number.isFinite(place(row)[1]) && cell(row, x.name) !== null && cell(row, y.name) !== null)
      .sort((a, b) => cell(a, x.name) - cell(b, x.name) || a.i - b.i);
    const figure = make("figure"), below = make("g"), above = make("g");
    sorted.forEach((row, i) => {
      const point = mark(shape(row), ...place(row), state.pins.includes(row) ? 9 : 6);
      const names = ["mark", state.pins.includes(row) && "pinned", !best.includes(row) && "faint"].filter(Boolean);
      for (const [name, text] of Object.entries({ class: names.join(" "), fill: colour(row), tabindex: i ? -1 : 0, role: "button", "data-run": row.i, "aria-label": describe(row).join("; "), "aria-pressed": state.pins.includes(row) }))
        point.setAttribute(name, text);
      point.addEventListener("pointerenter", () => hover(row, figure, point));
      point.addEventListener("pointerleave", () => hover(null, figure));
      point.addEventListener("focus", () => hover(row, figure, point));
      point.addEventListener("blur", () => hover(null, figure));
      point.addEventListener("click", () => pin(row));
      point.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
        if (step) { svg.querySelector(`[data-run="${(sorted[i + step] ?? row).i}"]`).focus(); event.preventDefault(); }
        if (event.key === "Enter" || event.key === " ") { pin(row); parts.scatter.querySelector(`[data-run="${row.i}"]`)?.focus(); event.preventDefault(); }
      });
      (best.includes(row) ? above : below).append(point);
    });
    svg.append(below, above);
    figure.append(svg, legend(), make("figcaption", {}, `${best.length} of ${list.length} runs are not beaten in both figures (dashed line); the others are pale.`));
    return figure;
  }

  function hover(row, figure, point, more = "") {
    parts.table?.querySelectorAll("tr.near").forEach((line) => line.classList.remove("near"));
    parts.scatter?.querySelectorAll(".mark.near").forEach((dot) => dot.classList.remove("near"));
    if (row) parts.table?.querySelector(`tr[data-run="${row.i}"]`)?.classList.add("near");
    if (row && seed) repeats(row).forEach((one) => parts.scatter?.querySelector(`.mark[data-run="${one.i}"]`)?.classList.add("near"));
    tip(figure, point, row && [...describe(row), more].filter(Boolean));
  }

  function legend() {
    const entries = [];
    if (state.colour) levels[state.colour].forEach((level, i) => entries.push(swatch(COLOURS[i % COLOURS.length], state.shape === state.colour ? SHAPES[i % SHAPES.length] : "circle", setting(state.colour, level))));
    if (state.shape && state.shape !== state.colour) levels[state.shape].forEach((level, i) => entries.push(swatch("#595959", SHAPES[i % SHAPES.length], setting(state.shape, level))));
    return make("div", { class: "legend" }, ...entries);
  }

  function heat() {
    const [down, across] = [state.heatDown, state.heatAcross], metric = of(state.y);
    const figure = make("figure");
    const grid = levels[down].map((a) => levels[across].map((b) => settled({ ...state.fixed, [down]: a, [across]: b }, metric)));
    const values = grid.flat().filter(Boolean).map((one) => one.mean);
    const low = Math.min(...values), high = Math.max(...values);
    const width = 520, left = 70, size = (width - left - 10) / levels[across].length, tall = Math.min(44, Math.max(26, size));
    const svg = make("svg", { viewBox: `0 0 ${width} ${tall * levels[down].length + 36}`, role: "group", "aria-label": `${titled(metric)} by ${of(down).label} and ${of(across).label}` });
    levels[across].forEach((level, j) => svg.append(make("text", { x: left + (j + 0.5) * size, y: 16, "text-anchor": "middle" }, shown(of(across), level))));
    levels[down].forEach((level, i) => {
      const y = 24 + i * tall;
      svg.append(make("text", { x: left - 10, y: y + tall / 2 + 5, "text-anchor": "end" }, shown(of(down), level)));
      levels[across].forEach((other, j) => {
        const one = grid[i][j], row = one?.row;
        if (!row) return;
        const share = high > low ? (one.mean - low) / (high - low) : 0.5;
        const box = make("rect", { class: `cell${state.pins.includes(row) ? " pinned" : ""}`, x: left + j * size + 1, y: y + 1, width: size - 2, height: tall - 2, fill: heatColour(share), "data-run": row.i, onclick: () => pin(row) });
        box.addEventListener("pointerenter", () => hover(row, figure, box, spread(one)));
        box.addEventListener("pointerleave", () => hover(null, figure));
        svg.append(box, make("text", { x: left + (j + 0.5) * size, y: y + tall / 2 + 5, "text-anchor": "middle", "pointer-events": "none", style: `fill:${share > 0.55 ? "#000" : "#fff"}` }, short(one.mean)));
      });
    });
    figure.append(svg, make("figcaption", {}, `${titled(metric)}, from ${short(low)} (dark) to ${short(high)} (light), ${metric.better} is better. Down: ${titled(of(down))}. Across: ${titled(of(across))}.${seed ? ` Each cell: the mean of ${levels[seed].length} seeds.` : ""}`));
    return figure;
  }

  function curves() {
    const along = state.heatAcross, by = state.heatDown, metric = of(state.y), steps = levels[along];
    const lines = levels[by].map((level) => steps.map((step) => settled({ ...state.fixed, [by]: level, [along]: step }, metric)));
    const { svg, box } = canvas(`${titled(metric)} over ${titled(of(along))}, a line for each ${of(by).label}`, 360, 520);
    const known = section.bound && section.bound.of === metric.name ? section.bound.value / metric.divisor : null;
    const bound = state.bound ? known : null;
    const all = lines.flat().filter(Boolean).flatMap((one) => [one.low, one.high]);
    const xs = scale(steps.map((_, i) => i), box.left + 20, box.right - 20, 0.02);
    xs.at = (i) => box.left + 30 + (i / Math.max(1, steps.length - 1)) * (box.right - box.left - 60);
    const ys = scale(bound === null ? all : [...all, bound], box.bottom, box.top);
    svg.append(axes(box, xs, ys, titled(of(along)), `${titled(metric)}, ${metric.better} is better`, steps.map((step) => shown(of(along), step))));
    if (bound !== null) svg.append(make("line", { class: "front bound", x1: box.left, x2: box.right, y1: ys.at(bound), y2: ys.at(bound) }),
      make("text", { x: box.right, y: ys.at(bound) + 16, "text-anchor": "end" }, `a cache without limit: ${short(bound)}`));
    lines.forEach((line, i) => {
      const points = line.map((one, j) => one && [xs.at(j), ys.at(one.mean), one]).filter(Boolean);
      if (!points.length) return;
      svg.append(make("path", { d: `M${points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L")}`, fill: "none", stroke: COLOURS[i % COLOURS.length], "stroke-width": 2 }));
      for (const [a, , one] of points) if (one.runs > 1) svg.append(make("line", { class: "spread", x1: a, x2: a, y1: ys.at(one.low), y2: ys.at(one.high), stroke: COLOURS[i % COLOURS.length], "stroke-width": 5, opacity: 0.35 }));
      points.forEach(([a, b, one]) => { const dot = mark(SHAPES[i % SHAPES.length], a, b, 4.5); dot.setAttribute("fill", COLOURS[i % COLOURS.length]); dot.append(make("title", {}, [...describe(one.row), spread(one)].filter(Boolean).join("\n"))); svg.append(dot); });
    });
    const toggle = known === null ? null : make("label", { class: "note" }, make("input", { type: "checkbox", class: "with-bound", checked: state.bound, onchange: (event) => { state.bound = event.target.checked; redraw("curves"); } }), ` the edge that no cache crosses (${short(known)})`);
    return make("figure", {}, svg, make("div", { class: "legend" }, ...levels[by].map((level, i) => swatch(COLOURS[i % COLOURS.length], SHAPES[i % SHAPES.length], setting(by, level)))), toggle, seed ? make("figcaption", {}, "Points: means over the seeds; bars behind them: from the least to the most.") : null);
  }

  function comparison() {
    const box = make("div", { class: "comparison", "aria-live": "polite" });
    if (!state.pins.length) { box.append(make("p", { class: "note" }, "Click a run in a picture or in the table to pin it; pin two to compare them.")); return box; }
    const [one, two] = state.pins;
    const body = make("tbody");
    for (const column of columns.filter((other) => other.number || keys.includes(other.name))) {
      const a = cell(one, column.name), b = two && cell(two, column.name);
      if (two ? a === b && !keys.includes(column.name) : a === null) continue;
      const change = two && typeof a === "number" && typeof b === "number" && a !== 0 ? (b - a) / Math.abs(a) : null;
      const judged = change && (section.tips.includes(column.name) || column.group === "times");
      const good = (change > 0) === (column.better === "higher");
      body.append(make("tr", {}, make("td", {}, titled(column)), make("td", {}, shown(column, a)), two ? make("td", {}, shown(column, b)) : null,
        two ? make("td", { class: judged ? (good ? "better" : "worse") : "" }, change === null || keys.includes(column.name) ? "" : changed(change)) : null));
    }
    box.append(make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "figure"), ...state.pins.map((row) => make("th", {}, words(row))), two ? make("th", {}, "change") : null)), body)),
      make("p", {}, make("button", { class: "act", onclick: () => { state.pins = []; update(); } }, "Unpin")));
    for (const row of state.pins) box.append(make("details", {}, make("summary", {}, `Configuration of ${words(row)}`), make("pre", {}, specText(row))));
    return box;
  }

  function specText(row) {
    const spec = { ...section.spec, ...(section.specs[row.i] ?? {}) };
    return Object.keys(spec).sort().map((key) => `${key}: ${JSON.stringify(spec[key])}`).join("\n");
  }

  function table() {
    const names = [...new Set([...keys, state.x, state.y, ...section.tips])];
    const sort = state.sort ?? state.y, down = state.sort ? state.down : of(state.y).better === "higher", sign = down ? -1 : 1;
    const list = (state.onlyFront ? front(visible()) : visible()).slice().sort((a, b) => sign * order(cell(a, sort), cell(b, sort)) || a.i - b.i);
    const head = make("tr", {}, ...names.map((name) => make("th", { "aria-sort": name === sort ? (down ? "descending" : "ascending") : "none" },
      make("button", { onclick: () => { state.down = sort === name ? !down : of(name).better === "higher"; state.sort = name; redraw("table"); } }, titled(of(name)), name === sort ? (down ? " ▼" : " ▲") : ""))));
    const lines = list.map((row) => make("tr", { class: `clickable${state.pins.includes(row) ? " pinned" : ""}`, "data-run": row.i, onclick: () => pin(row) },
      ...names.map((name) => make("td", {}, shown(of(name), cell(row, name))))));
    return make("div", {}, make("p", { class: "note count" }, `${list.length} of ${rows.length} runs`), make("div", { class: "scroll" }, make("table", { class: "runs" }, make("thead", {}, head), make("tbody", {}, ...lines))));
  }

  function controls() {
    const byKey = [["", "nothing"], ...keys.map((key) => [key, of(key).label])];
    const box = make("div", { class: "controls" },
      select("Across", numbers, state.x, (name) => { state.x = name; update(); }),
      select("Up", numbers, state.y, (name) => { state.y = name; update(); }),
      select("Colour", byKey, state.colour, (name) => { state.colour = name; update(); }),
      select("Shape", byKey, state.shape, (name) => { state.shape = name; update(); }));
    for (const key of keys) {
      const set = make("fieldset", {}, make("legend", {}, titled(of(key))));
      for (const level of levels[key]) {
        const tick = make("input", { type: "checkbox", checked: true, "data-key": key, onchange: (event) => { (state.hidden[key] ??= new Set())[event.target.checked ? "delete" : "add"](level); update(); } });
        set.append(make("label", {}, tick, ` ${shown(of(key), level)}`));
      }
      box.append(set);
    }
    box.append(make("label", {}, make("input", { type: "checkbox", class: "only-front", onchange: (event) => { state.onlyFront = event.target.checked; update(); } }), " only the front"));
    return box;
  }

  function heatControls() {
    const byKey = free.map((key) => [key, of(key).label]);
    const box = make("div", { class: "controls" },
      select("Down / a line each", byKey, state.heatDown, (name) => { if (name === state.heatAcross) state.heatAcross = state.heatDown; state.heatDown = name; update(); }),
      select("Across", byKey, state.heatAcross, (name) => { if (name === state.heatDown) state.heatDown = state.heatAcross; state.heatAcross = name; update(); }));
    for (const key of free.filter((other) => other !== state.heatDown && other !== state.heatAcross))
      box.append(select(of(key).label, levels[key].map((level, i) => [String(i), shown(of(key), level)]), String(levels[key].indexOf(state.fixed[key])), (i) => { state.fixed[key] = levels[key][Number(i)]; update(); }));
    return box;
  }

  const draw = { scatter, comparison, table };
  if (free.length > 1) Object.assign(draw, { heatControls, heat, curves });
  function redraw(name) {
    const fresh = draw[name]();
    parts[name].replaceWith(fresh);
    parts[name] = fresh;
  }
  function update() { for (const name of Object.keys(draw)) redraw(name); }

  state.fixed = Object.fromEntries(free.map((key) => [key, levels[key][0]]));
  const holder = make("section", { class: "explore" });
  const slot = (name) => (parts[name] = draw[name]());
  holder.append(make("h2", {}, "Runs against each other"), controls(), slot("scatter"), make("h2", {}, "Pinned runs"), slot("comparison"));
  if (free.length > 1) holder.append(make("h2", {}, "Over two settings"), slot("heatControls"), make("div", { class: "split" }, slot("heat"), slot("curves")));
  holder.append(make("h2", {}, "Every run"), slot("table"));
  return holder;
}

function changed(share) {
  if (share > 2) return `× ${short(1 + share)}`;
  const percent = 100 * share;
  return `${percent > 0 ? "+" : ""}${percent.toFixed(Math.abs(percent) < 10 ? 1 : 0)} %`;
}

function order(a, b) {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return a < b ? -1 : 1;
}
