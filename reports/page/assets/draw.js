// Elements, numbers, scales and axes: what every picture of the page is made of.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#0072B2", "#E69F00", "#000000", "#CC79A7", "#D55E00", "#56B4E9", "#009E73", "#999999"];
const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross", "plus", "star"];
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

function make(tag, attributes = {}, ...children) {
  const element = ["svg", "g", "path", "line", "rect", "text", "title", "circle"].includes(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "on" : "off";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
  if (size >= 1e5 || size < 1e-3) {
    for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit) return `${trimmed(value / unit)}${letter}`;
    return value.toExponential(2);
  }
  return trimmed(value);
}

function trimmed(value) {
  return String(Number(value.toPrecision(4)));
}

function bytes(value) {
  const step = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${trimmed(value / 2 ** (10 * step))} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

const shown = (column, value) => (typeof value === "number" ? short(value / column.divisor) : short(value));
const titled = (column) => (column.unit ? `${column.label} (${column.unit})` : column.label);

function ticks(low, high, wanted = 6) {
  const rough = (high - low) / wanted || Math.abs(high) / 10 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function scale(values, from, to, wide = 0.05) {
  const finite = values.filter((value) => Number.isFinite(value));
  let low = Math.min(...finite), high = Math.max(...finite);
  if (!finite.length) [low, high] = [0, 1];
  const margin = (high - low) * wide || Math.abs(high) * 0.1 || 1;
  const floor = low >= 0 ? 0 : -Infinity;
  [low, high] = [Math.max(floor, low - margin), high + margin];
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  return { at, low, high, ticks: ticks(low, high) };
}

function axes(box, x, y, xTitle, yTitle, xNames = null) {
  const group = make("g");
  const marks = xNames ? xNames.map((name, i) => [i, name]) : x.ticks.map((value) => [value, short(value)]);
  for (const [value, name] of marks)
    group.append(make("g", { class: "tick" },
      xNames ? null : make("line", { x1: x.at(value), x2: x.at(value), y1: box.top, y2: box.bottom }),
      make("text", { x: x.at(value), y: box.bottom + 18, "text-anchor": "middle" }, name)));
  for (const value of y.ticks)
    group.append(make("g", { class: "tick" },
      make("line", { x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value) }),
      make("text", { x: box.left - 8, y: y.at(value) + 4, "text-anchor": "end" }, short(value))));
  group.append(
    make("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    make("line", { class: "axis", x1: box.left, x2: box.left, y1: box.top, y2: box.bottom }),
    make("text", { x: (box.left + box.right) / 2, y: box.bottom + 42, "text-anchor": "middle" }, xTitle),
    make("text", { x: box.left - 52, y: box.top - 12, "text-anchor": "start" }, yTitle));
  return group;
}

function boxed(width, height) {
  return { left: 64, right: width - 16, top: 34, bottom: height - 52 };
}

function narrow() {
  return window.matchMedia("(max-width: 40rem)").matches;
}

function canvas(label, height = 420, width = narrow() ? 480 : 760) {
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  return { svg, width, box: boxed(width, height) };
}

function mark(shape, x, y, size) {
  const r = size, s = size * 0.9;
  const paths = {
    circle: `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    square: `M${-s},${-s}H${s}V${s}H${-s}Z`,
    triangle: `M0,${-r * 1.2}L${r * 1.1},${r * 0.8}H${-r * 1.1}Z`,
    diamond: `M0,${-r * 1.3}L${r * 1.1},0L0,${r * 1.3}L${-r * 1.1},0Z`,
    down: `M0,${r * 1.2}L${r * 1.1},${-r * 0.8}H${-r * 1.1}Z`,
    cross: `M${-r},${-r * 0.5}L${-r * 0.5},${-r}L0,${-r * 0.5}L${r * 0.5},${-r}L${r},${-r * 0.5}L${r * 0.5},0L${r},${r * 0.5}L${r * 0.5},${r}L0,${r * 0.5}L${-r * 0.5},${r}L${-r},${r * 0.5}L${-r * 0.5},0Z`,
    plus: `M${-r * 0.4},${-r}H${r * 0.4}V${-r * 0.4}H${r}V${r * 0.4}H${r * 0.4}V${r}H${-r * 0.4}V${r * 0.4}H${-r}V${-r * 0.4}H${-r * 0.4}Z`,
    star: `M0,${-r * 1.3}L${r * 0.4},${-r * 0.4}L${r * 1.25},${-r * 0.4}L${r * 0.6},${r * 0.2}L${r * 0.8},${r}L0,${r * 0.5}L${-r * 0.8},${r}L${-r * 0.6},${r * 0.2}L${-r * 1.25},${-r * 0.4}L${-r * 0.4},${-r * 0.4}Z`,
  };
  return make("path", { d: paths[shape], transform: `translate(${x},${y})` });
}

function swatch(colour, shape, name) {
  const svg = make("svg", { viewBox: "0 0 24 16", "aria-hidden": true });
  const drawn = mark(shape, 12, 8, 5);
  drawn.setAttribute("fill", colour);
  svg.append(drawn);
  return make("span", {}, svg, name);
}

function heatColour(share) {
  return CIVIDIS[Math.max(0, Math.min(CIVIDIS.length - 1, Math.floor(share * CIVIDIS.length)))];
}

function select(name, options, chosen, change) {
  const box = make("select", { onchange: (event) => change(event.target.value) });
  let group = null;
  for (const [value, text, heading] of options) {
    if (heading && (!group || group.label !== heading)) box.append((group = make("optgroup", { label: heading })));
    (heading ? group : box).append(make("option", { value, selected: value === chosen }, text));
  }
  return make("label", {}, name, box);
}

function tip(figure, near, lines) {
  figure.querySelector(".tip")?.remove();
  if (!lines) return;
  const box = make("div", { class: "tip", role: "status" }, make("b", {}, lines[0]), ...lines.slice(1).map((line) => make("div", {}, line)));
  figure.append(box);
  const frame = figure.getBoundingClientRect(), at = near.getBoundingClientRect();
  const left = at.right - frame.left + 10;
  box.style.left = `${Math.max(0, left + box.offsetWidth > frame.width ? at.left - frame.left - box.offsetWidth - 10 : left)}px`;
  box.style.top = `${Math.max(0, at.top - frame.top - box.offsetHeight / 2)}px`;
}
