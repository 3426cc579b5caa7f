// The other sections of a page: text, facts, tables, lines over a number, bars, points.

function facts(section) {
  const body = make("tbody", {}, ...section.rows.map(([name, text]) => make("tr", {}, make("td", {}, name), make("td", { class: "text" }, typeof text === "boolean" ? (text ? "yes" : "no") : short(text)))));
  return titledSection(section, make("div", { class: "scroll whole" }, make("table", {}, body)));
}

function listing(section) {
  const head = make("tr", {}, ...section.columns.map((column) => make("th", { class: column.number ? "" : "text" }, titled(column))));
  const body = section.rows.map((row) => make("tr", {}, ...row.map((value, i) => make("td", { class: section.columns[i].number ? "" : "text" }, shown(section.columns[i], value)))));
  return titledSection(section, make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}

function text(section) {
  const lines = section.lines.map((line) => make("p", {}, line));
  return titledSection(section, ...lines);
}

function source(section) {
  return titledSection(section, make("details", {}, make("summary", {}, section.summary), make("pre", {}, section.text)));
}

function lines(section) {
  const { svg, box } = canvas(`${section.title}: ${titled(section.y)} over ${titled(section.x)}`, 340);
  const points = section.series.flatMap((series) => series.points);
  const log = section.x.log, place = section.x.label.startsWith("bytes") ? bytes : (value) => shown(section.x, value);
  const across = (value) => (log ? Math.log2(value) : value / section.x.divisor);
  const xs = scale(points.map((point) => across(point[0])), box.left, box.right, 0.02);
  const ys = scale([0, ...points.map((point) => point[1] / section.y.divisor)], box.bottom, box.top);
  if (log) xs.ticks = ticks(xs.low, xs.high).filter(Number.isInteger);
  const axis = axes(box, xs, ys, titled(section.x), titled(section.y));
  if (log) axis.querySelectorAll(".tick text[text-anchor=middle]").forEach((label, i) => { label.textContent = place(2 ** xs.ticks[i]); });
  svg.append(axis);
  section.series.forEach((series, i) => {
    const colour = COLOURS[i % COLOURS.length];
    const at = series.points.map(([a, b]) => [xs.at(across(a)), ys.at(b / section.y.divisor)]);
    if (series.line !== false) svg.append(make("path", { d: `M${at.map((point) => point.map((v) => v.toFixed(1)).join(",")).join("L")}`, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": series.dashed ? "5 3" : null }));
    if (series.line === false || at.length < 40) at.forEach(([a, b], j) => { const dot = mark(SHAPES[i % SHAPES.length], a, b, 3.5); dot.setAttribute("fill", colour); dot.append(make("title", {}, `${series.name}: ${place(series.points[j][0])} → ${shown(section.y, series.points[j][1])}`)); svg.append(dot); });
  });
  return titledSection(section, make("figure", {}, svg, make("div", { class: "legend" }, ...section.series.map((series, i) => swatch(COLOURS[i % COLOURS.length], SHAPES[i % SHAPES.length], series.name)))));
}

function bars(section) {
  const column = section.column, width = narrow() ? 480 : 760, tall = 26, letters = Math.max(...section.rows.map((row) => row.name.length));
  const left = Math.min(narrow() ? 230 : 400, Math.max(90, 16 + letters * 7.3)), size = Math.min(13, (left - 12) / (letters * 0.56));
  const most = Math.max(...section.rows.map((row) => row.parts.reduce((sum, part) => sum + part, 0)), section.bound?.value ?? 0) || 1;
  const svg = make("svg", { viewBox: `0 0 ${width} ${section.rows.length * tall + 34}`, role: "group", "aria-label": `${section.title}, ${titled(column)}` });
  const at = (value) => left + (value / most) * (width - left - 70);
  section.rows.forEach((row, i) => {
    let from = 0;
    svg.append(make("text", { x: left - 8, y: i * tall + 18, "text-anchor": "end", style: `font-size:${size.toFixed(1)}px` }, row.name));
    row.parts.forEach((part, j) => {
      const bar = make("rect", { x: at(from), y: i * tall + 4, width: Math.max(0, at(from + part) - at(from)), height: tall - 8, fill: COLOURS[j % COLOURS.length] });
      bar.append(make("title", {}, `${row.name}, ${section.parts[j]}: ${shown(column, part)} ${column.unit}`));
      svg.append(bar);
      from += part;
    });
    svg.append(make("text", { x: at(from) + 6, y: i * tall + 18 }, shown(column, from)));
  });
  const foot = section.rows.length * tall;
  if (section.bound) svg.append(make("line", { class: "front", x1: at(section.bound.value), x2: at(section.bound.value), y1: 0, y2: foot }), make("text", { x: at(section.bound.value), y: foot + 16, "text-anchor": "end" }, section.bound.label));
  svg.append(make("text", { x: left, y: foot + 28 }, section.bound ? "" : titled(column)));
  const legend = section.parts.length > 1 ? make("div", { class: "legend" }, ...section.parts.map((name, i) => swatch(COLOURS[i % COLOURS.length], "square", name))) : null;
  return titledSection(section, make("figure", {}, svg, legend, section.note ? make("figcaption", {}, section.note) : null));
}

// A bar a row. On a narrow screen the row's name stands above its bar.
function changes(section) {
  const above = narrow(), width = above ? 420 : 760, left = above ? 0 : 330, tall = above ? 40 : 22, rows = section.rows;
  const letters = Math.max(...rows.map((row) => row.name.length)), room = above ? width : left - 10;
  const size = Math.min(13, room / (letters * 0.54));
  const low = Math.min(0, ...rows.map((row) => row.change)), high = Math.max(0, ...rows.map((row) => row.change)), span = high - low || 1;
  const at = (share) => left + 60 + ((share - low) / span) * (width - left - 130);
  const svg = make("svg", { viewBox: `0 0 ${width} ${rows.length * tall + 6}`, role: "group", "aria-label": section.axis, style: "max-width: 60rem" });
  rows.forEach((row, i) => {
    const y = i * tall + (above ? 18 : 0), end = at(row.change), zero = at(0), label = row.change < 0 ? { x: end - 5, "text-anchor": "end" } : { x: end + 5 };
    const bar = make("rect", { x: Math.min(zero, end), y: y + 4, width: Math.max(1, Math.abs(end - zero)), height: 14, fill: row.holds ? COLOURS[0] : COLOURS[1] });
    const name = above ? { x: 0, y: y - 2 } : { x: left - 8, y: y + 16, "text-anchor": "end" };
    svg.append(make("text", { ...name, style: `font-size:${size.toFixed(1)}px` }, row.name), bar, make("text", { ...label, y: y + 16 }, changed(row.change)));
  });
  const foot = rows.length * tall;
  svg.append(make("line", { class: "axis", x1: at(0), x2: at(0), y1: 0, y2: foot }));
  const legend = make("div", { class: "legend" }, swatch(COLOURS[0], "square", "as claimed"), swatch(COLOURS[1], "square", "not as claimed"));
  return titledSection(section, ...section.lines.map((line) => make("p", {}, line)), make("figure", {}, svg, make("figcaption", {}, section.axis), legend));
}

function titledSection(section, ...children) {
  return make("section", {}, section.title ? make("h2", {}, section.title) : null, section.lead ? make("p", { class: "note" }, section.lead) : null, ...children);
}

const KINDS = { explore, facts, listing, text, source, lines, bars, changes };

function page(data) {
  const main = make("main", {}, make("h1", {}, data.title), make("p", { class: "lead" }, data.lead));
  for (const section of data.sections) main.append(KINDS[section.kind](section));
  main.append(make("p", { class: "note" }, data.made_by));
  document.body.append(main);
}

page(JSON.parse(document.getElementById("data").textContent));
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((box) => { box.open = true; }));
