
"use strict";
(() => {
  // ---------------------------------------------------------------------------------------------
  // the data, and making elements. Text from the data only ever becomes textContent or a value.

  const DATA = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const unpack = (text, Kind) => {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Kind(bytes.buffer);
  };

  // What is not seen, or turns the direction of what follows, is written as an escape.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
  const visible = (text) => text.replace(HIDDEN, (character) =>
    "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));

  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name, value);
      else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
      else node.setAttribute(name, value === true ? "" : visible(String(value)));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined)
      .map((child) => (typeof child === "string" ? visible(child) : child)));
    return node;
  };
  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  const n = DATA.n, K = DATA.clusters.length;
  const labels = unpack(DATA.labels, Uint16Array);
  const doubt = DATA.doubt && unpack(DATA.doubt, Uint8Array);
  const classes = DATA.classes && unpack(DATA.classes.codes, Uint16Array);
  const classNames = DATA.classes ? DATA.classes.names : [];
  const mapX = DATA.map && unpack(DATA.map.x, Uint16Array);
  const mapY = DATA.map && unpack(DATA.map.y, Uint16Array);

  const count = (number) => number.toLocaleString("en");
  const percent = (part) => (100 * part).toFixed(part && part < 0.0995 ? 1 : 0) + "\u00a0%";
  const brief = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(4)));
  };
  const rowsOf = (number) => count(number) + (number === 1 ? " row" : " rows");
  const nameOf = (row) => (DATA.ids ? DATA.ids[row] : "Row " + row);

  // ---------------------------------------------------------------------------------------------
  // colours and marks

  const SHAPES = ["disc", "square", "diamond"];
  const NO_COLOR = "#8b949e";  // of rows without a class
  // clusters have the colour of their number, classes that of the cluster they are matched to
  const numberOf = (kind, group) => (kind === "classes" ? DATA.classes.colors[group] : group);
  const colorOf = (number) => (number === null ? NO_COLOR : DATA.colors[number % DATA.colors.length]);
  const shapeOf = (number) => (number === null ? 0 : Math.floor(number / 10) % SHAPES.length);
  const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mark = (number) => make("span", {
    class: "mark " + SHAPES[shapeOf(number)], style: { "--mark": colorOf(number) }, "aria-hidden": "true",
  });
  // from sure to doubtful, told apart by lightness, too
  const RAMP = ["#3b4a8c", "#2f7ea1", "#45a778", "#c3c23a", "#f2a43a", "#e2603a"].map(rgbOf);
  const ramp = (part) => {
    const at = Math.min(part, 0.9999) * (RAMP.length - 1), low = Math.floor(at);
    return RAMP[low].map((value, i) => Math.round(value + (RAMP[low + 1][i] - value) * (at - low)));
  };

  // ---------------------------------------------------------------------------------------------
  // pictures: cells of one image

  const atlas = DATA.atlas;
  const cellOf = new Map();
  let sheet = null;
  if (atlas) {
    unpack(atlas.rows, Uint32Array).forEach((row, i) => cellOf.set(row, atlas.centers + i));
    const sheetOfStyles = document.styleSheets[0];
    sheetOfStyles.insertRule(`.pic { background-image: url("${atlas.url}") }`, sheetOfStyles.cssRules.length);
    sheet = new Image();
    sheet.addEventListener("load", () => redraw());
    sheet.src = atlas.url;
  }
  const picture = (cell, side, title) => {
    const scale = side / Math.max(atlas.width, atlas.height);
    const px = (value) => value * scale + "px";
    const rows = Math.ceil(atlas.n_pictures / atlas.columns);
    return make("span", {
      class: "pic" + (atlas.smooth ? "" : " crisp"), role: "img", "aria-label": title,
      style: {
        width: px(atlas.width), height: px(atlas.height),
        "background-size": px(atlas.columns * atlas.cell_width) + " " + px(rows * atlas.cell_height),
        "background-position": px(-(cell % atlas.columns) * atlas.cell_width) + " " +
          px(-Math.floor(cell / atlas.columns) * atlas.cell_height),
      },
    });
  };

  // ---------------------------------------------------------------------------------------------
  // one row, wherever it is shown

  const columns = DATA.table && unpack(DATA.table.values, Uint16Array);
  const MISSING = 65535;
  const valueAt = (row, column) => {
    const at = columns[column * n + row];
    return at === MISSING ? "missing" : brief(DATA.table.low[column] + DATA.table.step[column] * at);
  };
  const inBrief = (row, some) => some.flatMap((column, i) =>
    [i ? ", " : null, make("bdi", {}, DATA.table.names[column]), " " + valueAt(row, column)]);
  // columns that set a cluster apart, then those that set all apart
  const columnsOf = (k) => {
    const own = (DATA.clusters[k].features || []).map((feature) => DATA.table.names.indexOf(feature.name));
    return [...new Set([...own.filter((column) => column >= 0), ...DATA.table.names.keys()])].slice(0, 3);
  };

  // a text, with the words that set its cluster apart standing out
  const wordsOf = DATA.clusters.map((cluster) => new Set(cluster.words || []));
  const textOf = (row) => {
    const text = DATA.texts[row];
    if (!text) return make("span", { class: "nothing" }, "(empty)");
    const words = wordsOf[labels[row]];
    const parts = words.size ? text.split(/(\p{L}+)/u) : [text];
    return make("bdi", {}, parts.map((part) => (words.has(part.toLowerCase()) ? make("b", {}, part) : part)));
  };

  // the row of the same cluster nearest on the map whose picture is in the file
  const nearestPictured = (row) => {
    let best = -1, least = Infinity;
    for (const other of DATA.map ? cellOf.keys() : []) {
      const far = (mapX[other] - mapX[row]) ** 2 + (mapY[other] - mapY[row]) ** 2;
      if (labels[other] === labels[row] && far < least) [best, least] = [other, far];
    }
    return best;
  };

  const clusterName = (k) => "Cluster " + k;
  const item = (row, side) => {
    const facts = make("div", { class: "facts" }, make("div", { class: "id", dir: "auto" }, nameOf(row)));
    facts.append(make("div", { class: "line" }, mark(labels[row]), make("b", {}, clusterName(labels[row])),
      doubt ? "doubt " + (doubt[row] / 255).toFixed(2) : null));
    if (classes) facts.append(make("div", { class: "line" }, "Class ", make("b", {}, make("bdi", {}, classNames[classes[row]]))));
    if (DATA.texts) facts.append(make("div", { class: "text" }, textOf(row)));
    if (DATA.table) {
      facts.append(make("table", { class: "values" }, make("tbody", {}, DATA.table.names.map((name, column) =>
        make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), make("td", {}, valueAt(row, column)))))));
    }
    const other = cellOf.has(row) || !cellOf.size ? row : nearestPictured(row);
    if (!cellOf.has(other)) return make("div", { class: "item bare" }, facts);
    if (other !== row) facts.append(make("div", { class: "line" }, "Picture: its neighbour, ", make("bdi", {}, nameOf(other))));
    return make("div", { class: "item" }, picture(cellOf.get(other), side, "Picture of " + nameOf(other)), facts);
  };

  // ---------------------------------------------------------------------------------------------
  // what is shown: clusters, classes and words that were asked for

  const state = {
    colorBy: "cluster", clusters: new Set(), classes: new Set(), words: [],
    pinned: -1, hover: -1, lit: null, page: 0, order: "row",
  };
  const shown = new Uint8Array(n).fill(1);
  let order = [];
  let haystack = null;

  const searchable = (row) =>
    [nameOf(row), DATA.texts ? DATA.texts[row] : ""].join("\n").toLowerCase();

  const refilter = () => {
    if (state.words.length && !haystack) haystack = Array.from({ length: n }, (_, row) => searchable(row));
    let total = 0;
    for (let row = 0; row < n; row++) {
      const kept = (!state.clusters.size || state.clusters.has(labels[row])) &&
        (!state.classes.size || state.classes.has(classes[row])) &&
        state.words.every((word) => haystack[row].includes(word));
      shown[row] = kept ? 1 : 0;
      total += shown[row];
    }
    const all = total === n;
    byId("count").textContent = all ? rowsOf(n) : count(total) + " of " + rowsOf(n);
    byId("clear").hidden = !(state.clusters.size || state.classes.size || state.words.length);
    byId("download").textContent = all ? "Download labels" : "Download " + count(total) + " labels";
    byId("download").disabled = total === 0;
    for (const button of document.querySelectorAll(".legend button")) {
      const { kind, group } = button.dataset;
      button.setAttribute("aria-pressed", String(state[kind].has(Number(group))));
    }
    state.page = 0;
    reorder();
    redraw();
  };
  const toggle = (kind, group) => {
    if (!state[kind].delete(group)) state[kind].add(group);
    refilter();
  };
  const only = (kind, group) => {
    state[kind].clear();
    state[kind].add(group);
    refilter();
  };
  const showAll = () => {
    state.clusters.clear();
    state.classes.clear();
    state.words = [];
    byId("search").value = "";
    refilter();
  };

  // ---------------------------------------------------------------------------------------------
  // the map

  const canvas = byId("canvas"), context = canvas.getContext("2d");
  const view = { scale: 1, x: 0, y: 0, fit: 1 };  // pixels of the screen are scale * place + (x, y)
  const ratio = () => Math.min(window.devicePixelRatio || 1, 2);
  const MAX_PICTURES = 260;
  let frame = 0, image = null, buffer = null;

  const redraw = () => {
    if (DATA.map && !frame) frame = requestAnimationFrame(paint);
  };

  const kindNow = () => (state.colorBy === "class" ? "classes" : "clusters");
  const groupsNow = () => (state.colorBy === "class" ? classes : labels);
  const numbersNow = () =>
    Array.from({ length: state.colorBy === "class" ? classNames.length : K }, (_, group) => numberOf(kindNow(), group));
  const DOUBTS = Array.from({ length: 256 }, (_, i) => ramp(i / 255));

  // how much of each pixel around a point its mark covers, 0 to 256, and the gap around it
  const stampOf = (shape, radius, gap, width) => {
    const reach = Math.ceil(radius + gap + 0.5);
    const at = [], cover = [], ring = [];
    for (let dy = -reach; dy <= reach; dy++) {
      for (let dx = -reach; dx <= reach; dx++) {
        const x = Math.abs(dx), y = Math.abs(dy);
        let far = Math.hypot(x, y) - radius;
        if (shape === "square") far = Math.max(x, y) - radius * 0.88;
        if (shape === "diamond") far = (x + y - radius * 1.3) * Math.SQRT1_2;
        const inside = Math.max(0, Math.min(1, 0.5 - far));
        const around = gap ? Math.max(0, Math.min(1, 0.5 - far + gap)) : 0;
        if (inside || around) {
          at.push(dy * width + dx);
          cover.push(Math.round(256 * inside));
          ring.push(Math.round(256 * around));
        }
      }
    }
    return { at: Int32Array.from(at), cover: Int32Array.from(cover), ring: Int32Array.from(ring), reach };
  };

  const cssColor = (name) => rgbOf(getComputedStyle(document.documentElement).getPropertyValue(name).trim());

  const radiusNow = () => {
    const small = Math.sqrt(Math.min(1, Math.min(canvas.width, canvas.height) / (600 * ratio())));
    const base = Math.max(1.1, small * Math.min(4.6, 7.6 - 1.32 * Math.log10(n)));
    return base * Math.min(3, Math.pow(view.scale / view.fit, 0.4)) * ratio();
  };

  const paint = () => {
    frame = 0;
    const W = canvas.width, H = canvas.height;
    if (!W || !H) return;
    if (!image || image.width !== W || image.height !== H) {
      image = context.createImageData(W, H);
      buffer = new Uint32Array(image.data.buffer);
    }
    const back = cssColor("--stage"), faint = cssColor("--faint");
    buffer.fill(0xff000000 | (back[2] << 16) | (back[1] << 8) | back[0]);
    const groups = groupsNow(), numbers = numbersNow();
    const colors = numbers.map((number) => rgbOf(colorOf(number))), shapes = numbers.map(shapeOf);
    const byDoubt = state.colorBy === "doubt";
    const radius = radiusNow(), gap = n <= 8000 && radius >= 2 ? 0.8 * ratio() : 0;
    const stamps = SHAPES.map((shape) => stampOf(shape, radius, gap, W));
    const solid = n > 20000 ? 0.72 : 0.94;
    const inView = [];

    const plot = (row, color, strength, shape) => {
      const x = Math.round(mapX[row] * view.scale + view.x), y = Math.round(mapY[row] * view.scale + view.y);
      const stamp = stamps[shape], reach = stamp.reach;
      if (x < reach || y < reach || x >= W - reach || y >= H - reach) return;
      if (strength === 1) inView.push(row);
      const middle = y * W + x, { at, cover, ring } = stamp, [red, green, blue] = color;
      const part = strength * solid;
      for (let i = 0; i < at.length; i++) {
        const j = middle + at[i], old = buffer[j];
        let r = old & 255, g = (old >> 8) & 255, b = (old >> 16) & 255;
        if (gap) {
          const a = ring[i] * strength;
          r += ((back[0] - r) * a) >> 8; g += ((back[1] - g) * a) >> 8; b += ((back[2] - b) * a) >> 8;
        }
        const a = cover[i] * part;
        r += ((red - r) * a) >> 8; g += ((green - g) * a) >> 8; b += ((blue - b) * a) >> 8;
        buffer[j] = 0xff000000 | (b << 16) | (g << 8) | r;
      }
    };
    const lit = state.lit;
    const dim = (row) => !shown[row] || (lit && (lit.kind === "classes" ? classes : labels)[row] !== lit.group);
    for (let row = 0; row < n; row++) if (dim(row)) plot(row, faint, 0.55, 0);
    for (let row = 0; row < n; row++) {
      if (dim(row)) continue;
      if (byDoubt) plot(row, DOUBTS[doubt[row]], 1, 0);
      else plot(row, colors[groups[row]], 1, shapes[groups[row]]);
    }
    context.putImageData(image, 0, 0);
    if (inView.length <= MAX_PICTURES) paintPictures(inView, groups);
    paintNames(groups, back);
    for (const row of [state.hover, state.pinned]) if (row >= 0) paintRing(row, radius);
    canvas.dataset.view = [view.scale / ratio(), view.x / ratio(), view.y / ratio()].join(" ");
  };

  const paintPictures = (rows, groups) => {
    if (!sheet || !sheet.complete || !cellOf.size) return;
    const places = rows.map(placeOf);
    const [[left, right], [top, bottom]] = [0, 1].map((axis) => extent(places.map((place) => place[axis])));
    const pitch = Math.sqrt(((right - left) * (bottom - top)) / Math.max(rows.length, 1));
    const side = Math.max(16 * ratio(), Math.min(64 * ratio(), 0.7 * pitch));
    const scale = side / Math.max(atlas.width, atlas.height);
    const w = atlas.width * scale, h = atlas.height * scale, edge = 2 * ratio();
    context.imageSmoothingEnabled = atlas.smooth;
    for (const row of rows) {
      const cell = cellOf.get(row);
      if (cell === undefined) continue;
      const [x, y] = placeOf(row);
      context.fillStyle = state.colorBy === "doubt" ? `rgb(${ramp(doubt[row] / 255)})` : colorOf(numberOf(kindNow(), groups[row]));
      context.fillRect(x - w / 2 - edge, y - h / 2 - edge, w + 2 * edge, h + 2 * edge);
      context.drawImage(sheet, (cell % atlas.columns) * atlas.cell_width,
        Math.floor(cell / atlas.columns) * atlas.cell_height, atlas.width, atlas.height,
        x - w / 2, y - h / 2, w, h);
    }
  };

  const placeOf = (row) => [mapX[row] * view.scale + view.x, mapY[row] * view.scale + view.y];

  // of each group the row that is nearest to its middle, and how far above that it reaches
  const middles = (groups, size) => {
    const members = Array.from({ length: size }, () => []);
    for (let row = 0; row < n; row++) members[groups[row]].push(row);
    return members.map((rows) => {
      if (!rows.length) return null;
      const quantile = (places, part) =>
        Float64Array.from(rows, (row) => places[row]).sort()[Math.floor(part * (rows.length - 1))];
      const x = quantile(mapX, 0.5), y = quantile(mapY, 0.5);
      let best = rows[0], least = Infinity;
      for (const row of rows) {
        const far = (mapX[row] - x) ** 2 + (mapY[row] - y) ** 2;
        if (far < least) [best, least] = [row, far];
      }
      return { row: best, above: Math.max(0, mapY[best] - quantile(mapY, 0.05)) };
    });
  };
  const middlesOf = new Map();

  const paintNames = (groups, back) => {
    const byClass = state.colorBy === "class";
    if (!middlesOf.has(byClass)) middlesOf.set(byClass, middles(groups, byClass ? classNames.length : K));
    const wanted = byClass ? state.classes : state.clusters;
    const found = middlesOf.get(byClass), many = found.length > 20;
    const high = (many ? 15 : 20) * ratio(), ink = getComputedStyle(document.body).color;
    context.font = `650 ${(many ? 10 : 13) * ratio()}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const taken = [];
    found.forEach((middle, group) => {
      if (!middle || (wanted.size && !wanted.has(group))) return;
      const long = byClass ? visible(classNames[group]) : String(group);
      const name = long.length > 22 ? long.slice(0, 21) + "…" : long;
      const half = context.measureText(name).width / 2 + (many ? 4 : 6) * ratio();
      const above = middle.above * view.scale;
      let [x, y] = placeOf(middle.row);
      if (above < high) y -= above + high / 2 + 6 * ratio();  // it would hide its group
      // of names that would hide each other the first is drawn; closer by, both are
      if (taken.some((box) => Math.abs(box.x - x) < box.half + half && Math.abs(box.y - y) < high)) return;
      taken.push({ x, y, half });
      context.beginPath();
      context.roundRect(x - half, y - high / 2, 2 * half, high, high / 2);
      context.fillStyle = `rgba(${back}, .86)`;
      context.fill();
      context.lineWidth = 1.6 * ratio();
      context.strokeStyle = colorOf(numberOf(kindNow(), group));
      context.stroke();
      context.fillStyle = ink;
      context.fillText(name, x, y + 0.5 * ratio());
    });
  };

  const paintRing = (row, radius) => {
    const [x, y] = placeOf(row), ink = getComputedStyle(document.body).color;
    for (const [width, color] of [[5, `rgb(${cssColor("--stage")})`], [2.2, ink]]) {
      context.beginPath();
      context.arc(x, y, radius + 4 * ratio(), 0, 2 * Math.PI);
      context.lineWidth = width * ratio();
      context.strokeStyle = color;
      context.stroke();
    }
  };

  const extent = (places) => {
    let low = Infinity, high = -Infinity;
    for (const place of places) { low = Math.min(low, place); high = Math.max(high, place); }
    return [low, high];
  };
  const fitView = () => {
    const [left, right] = extent(mapX), [top, bottom] = extent(mapY);
    const pictured = cellOf.size && n <= MAX_PICTURES;  // a picture reaches farther than a mark
    const margin = (pictured ? 44 : 30) * ratio(), width = canvas.width - 36 * ratio();  // beside the buttons
    view.scale = view.fit = Math.min((width - 2 * margin) / Math.max(right - left, 1),
      (canvas.height - 2 * margin) / Math.max(bottom - top, 1));
    view.x = (width - view.scale * (left + right)) / 2;
    view.y = (canvas.height - view.scale * (top + bottom)) / 2;
    redraw();
  };
  const zoomAt = (factor, x = canvas.width / 2, y = canvas.height / 2) => {
    const scale = Math.max(0.5 * view.fit, Math.min(400 * view.fit, view.scale * factor));
    view.x = x - (x - view.x) * (scale / view.scale);
    view.y = y - (y - view.y) * (scale / view.scale);
    view.scale = scale;
    redraw();
  };
  const move = (dx, dy) => {
    view.x += dx;
    view.y += dy;
    redraw();
  };
  const resize = () => {
    const box = canvas.getBoundingClientRect();
    const width = Math.round(box.width * ratio()), height = Math.round(box.height * ratio());
    if (!width || (canvas.width === width && canvas.height === height)) return;
    const first = !image && !frame, dx = (width - canvas.width) / 2, dy = (height - canvas.height) / 2;
    const whole = first || Math.abs(view.scale - view.fit) < 1e-9;
    canvas.width = width;
    canvas.height = height;
    if (whole) fitView();
    else move(dx, dy);
  };

  const nearest = (x, y, reach) => {
    let best = -1, least = reach * reach;
    for (let row = 0; row < n; row++) {
      if (!shown[row]) continue;
      const dx = mapX[row] * view.scale + view.x - x, dy = mapY[row] * view.scale + view.y - y;
      const far = dx * dx + dy * dy;
      if (far < least) [best, least] = [row, far];
    }
    return best;
  };
  const pointOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * ratio(), (event.clientY - box.top) * ratio()];
  };

  // ---------------------------------------------------------------------------------------------
  // pointing at a row, and choosing one

  const tip = byId("tip");
  const hover = (row, event) => {
    if (row !== state.hover) {
      state.hover = row;
      canvas.classList.toggle("pointing", row >= 0);
      tip.replaceChildren(...(row >= 0 ? [item(row, 72)] : []));
      redraw();
    }
    tip.hidden = row < 0;
    if (row < 0) return;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = Math.min(event.clientY + 12, innerHeight - box.height - 8);
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  };

  const pin = (row) => {
    state.pinned = row;
    const panel = byId("pinned");
    panel.hidden = row < 0;
    panel.replaceChildren();
    if (row >= 0) {
      const k = labels[row];
      panel.append(item(row, 96), make("div", { class: "buttons" },
        make("button", { type: "button", click: () => only("clusters", k) }, "Only cluster " + k),
        make("button", { type: "button", click: () => pin(-1) }, "Close")));
      reveal(row);
    }
    redraw();
  };
  const reveal = (row) => {
    if (!DATA.map) return;
    const [x, y] = placeOf(row), margin = 20 * ratio();
    const out = x < margin || y < margin || x > canvas.width - margin || y > canvas.height - margin;
    if (out) move(canvas.width / 2 - x, canvas.height / 2 - y);
    const panel = byId("pinned").getBoundingClientRect(), box = canvas.getBoundingClientRect();
    const right = (panel.right - box.left) * ratio() + margin, top = (panel.top - box.top) * ratio() - margin;
    const [left, down] = placeOf(row);
    if (panel.top < box.bottom && left < right && down > top) move(0, top - down);  // it would hide the row
  };
  const pinFrom = (row) => {
    pin(row);
    byId(DATA.map ? "map" : "pinned").scrollIntoView({ block: "nearest" });
  };
  const step = (by) => {
    if (!order.length) return;
    const at = order.indexOf(state.pinned);
    pin(order[at < 0 ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length]);
  };

  const pointers = new Map();
  let dragged = 0;
  const listenToMap = () => {
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, pointOf(event));
      dragged = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = pointOf(event);
      const last = pointers.get(event.pointerId);
      if (!last) {
        hover(nearest(x, y, 14 * ratio()), event);
        return;
      }
      if (pointers.size === 2) {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const before = Math.hypot(last[0] - other[0], last[1] - other[1]);
        zoomAt(Math.hypot(x - other[0], y - other[1]) / Math.max(before, 1), (x + other[0]) / 2, (y + other[1]) / 2);
      } else {
        move(x - last[0], y - last[1]);
      }
      dragged += Math.hypot(x - last[0], y - last[1]);
      canvas.classList.toggle("dragging", dragged > 4 * ratio());
      if (dragged > 4 * ratio()) hover(-1, event);
      pointers.set(event.pointerId, [x, y]);
    });
    const release = (event) => {
      const was = pointers.delete(event.pointerId);
      canvas.classList.remove("dragging");
      if (was && event.type === "pointerup" && dragged <= 4 * ratio()) {
        const row = nearest(...pointOf(event), (event.pointerType === "touch" ? 24 : 14) * ratio());
        pin(row);
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", (event) => hover(-1, event));
    canvas.addEventListener("dblclick", (event) => zoomAt(2, ...pointOf(event)));
    canvas.addEventListener("wheel", (event) => {
      // a page that is scrolled past the map should scroll
      if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomAt(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), ...pointOf(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const far = 0.15 * canvas.width;
      const keys = {
        ArrowLeft: () => move(far, 0), ArrowRight: () => move(-far, 0),
        ArrowUp: () => move(0, far), ArrowDown: () => move(0, -far),
        "+": () => zoomAt(1.5), "=": () => zoomAt(1.5), "-": () => zoomAt(1 / 1.5),
        0: fitView, Home: fitView,
        Enter: () => pin(nearest(canvas.width / 2, canvas.height / 2, Infinity)),
        n: () => step(1), p: () => step(-1), Escape: () => pin(-1),
      };
      const act = keys[event.key] || keys[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      act();
    });
    byId("zoom-in").addEventListener("click", () => zoomAt(1.6));
    byId("zoom-out").addEventListener("click", () => zoomAt(1 / 1.6));
    byId("zoom-reset").addEventListener("click", fitView);
    new ResizeObserver(resize).observe(canvas);
    resize();
  };

  // ---------------------------------------------------------------------------------------------
  // beside the map

  const legend = (kind, title, names, sizes) =>
    make("div", { "data-kind": kind }, make("div", { class: "legend-title", id: "legend-" + kind }, title),
      make("ul", { class: "legend", "aria-labelledby": "legend-" + kind }, names.map((name, group) =>
        make("li", {}, make("button", {
          type: "button", "data-kind": kind, "data-group": group, "aria-pressed": "false",
          click: () => toggle(kind, group),
          pointerenter: () => { state.lit = { kind, group }; redraw(); },
          pointerleave: () => { state.lit = null; redraw(); },
        }, mark(numberOf(kind, group)), make("bdi", { class: "label", title: name }, name),
        make("span", { class: "size" }, count(sizes[group])))))));

  const colorBy = (value) => {
    state.colorBy = value;
    byId("scale").hidden = value !== "doubt";
    for (const part of [...byId("legends").children]) {
      const first = part.dataset.kind === kindNow();
      part.classList.toggle("coloured", first && value !== "doubt");
      if (first) byId("legends").prepend(part);
    }
    redraw();
  };

  const buildSide = () => {
    const choices = [["cluster", "Cluster"]];
    if (classes) choices.push(["class", "Class"]);
    if (doubt) choices.push(["doubt", "Doubt"]);
    for (const [value, title] of choices) {
      byId("color-by").append(make("label", {}, make("input", {
        type: "radio", name: "color-by", value, checked: value === "cluster",
        change: () => colorBy(value),
      }), make("span", {}, title)));
    }
    byId("color-by").hidden = choices.length < 2 || !DATA.map;
    const stops = RAMP.map((rgb) => `rgb(${rgb})`).join(",");
    byId("scale").append("sure", make("i", { style: { background: `linear-gradient(90deg,${stops})` } }), "doubtful");
    const sizes = new Array(classNames.length).fill(0);
    if (classes) for (const group of classes) sizes[group]++;
    byId("legends").append(legend("clusters", "Clusters", DATA.clusters.map((_, k) => clusterName(k)),
      DATA.clusters.map((cluster) => cluster.size)));
    if (classes) byId("legends").append(legend("classes", "Classes", classNames, sizes));
    colorBy("cluster");
    byId("search").placeholder = DATA.texts ? "Words" : "Name of a row";
    byId("search").addEventListener("input", (event) => {
      state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      refilter();
    });
    byId("clear").addEventListener("click", showAll);
  };

  // ---------------------------------------------------------------------------------------------
  // cards

  const countsOf = new Uint32Array(K * classNames.length);  // of each class in each cluster
  if (classes) for (let row = 0; row < n; row++) countsOf[labels[row] * classNames.length + classes[row]]++;
  const commonClass = (k) => {
    const counts = countsOf.subarray(k * classNames.length, (k + 1) * classNames.length);
    const most = counts.indexOf(Math.max(...counts));
    if (!counts[most]) return [];
    return [" · mostly ", make("bdi", {}, classNames[most]), ` (${percent(counts[most] / DATA.clusters[k].size)})`];
  };

  const [THUMB, CENTRE] = innerWidth < 500 ? [34, 72] : [38, 88];  // six members side by side
  const member = (row) => {
    const name = nameOf(row);
    if (cellOf.has(row)) {
      return make("button", { type: "button", title: name, click: () => pinFrom(row) },
        picture(cellOf.get(row), THUMB, "Show " + name));
    }
    return make("li", {}, make("button", { type: "button", click: () => pinFrom(row) },
      make("span", { class: "clamp" }, DATA.ids || !DATA.texts ? [make("bdi", { class: "id" }, name), " "] : null,
        DATA.texts ? textOf(row) : DATA.table ? inBrief(row, columnsOf(labels[row])) : null)));
  };
  const members = (title, rows) => {
    if (!rows || !rows.length) return null;
    const pictures = rows.some((row) => cellOf.has(row));
    const kind = pictures ? "thumbs" : DATA.texts || DATA.table ? "members" : "members short";
    return make("div", {}, make("h4", {}, title), make(pictures ? "div" : "ul", { class: kind }, rows.map(member)));
  };

  const bars = (features) => {
    const most = Math.max(1, ...features.map((feature) => Math.abs(feature.difference)));
    return make("div", {}, make("h4", {}, "Features against the rest, in standard deviations"),
      make("table", { class: "bars" }, make("tbody", {}, features.map((feature) =>
        make("tr", { title: `${feature.name}: ${brief(feature.inside)} inside, ${brief(feature.outside)} outside` },
          make("th", { scope: "row" }, make("bdi", {}, feature.name)),
          make("td", {}, make("div", { class: "bar" }, make("i", {
            class: feature.difference > 0 ? "up" : "down",
            style: { width: (50 * Math.abs(feature.difference)) / most + "%" },
          }))),
          make("td", { class: "number" }, (feature.difference > 0 ? "+" : "−") + Math.abs(feature.difference).toFixed(1)))))));
  };

  const card = (cluster, k) => {
    const groups = make("div", { class: "groups" },
      cluster.words && cluster.words.length
        ? make("div", {}, make("h4", {}, "Words that set it apart"), make("ul", { class: "words" }, cluster.words.map((word) => make("li", { dir: "auto" }, word))))
        : null,
      cluster.features && cluster.features.length ? bars(cluster.features) : null,
      members("Most typical", cluster.typical),
      members("Most doubtful", cluster.doubtful),
      cluster.size ? null : make("p", { class: "nothing" }, "No row is nearest to its centre."));
    const centre = atlas && atlas.centers
      ? make("div", {}, make("h4", {}, "Centre"), picture(k, CENTRE, "Centre of cluster " + k)) : null;
    return make("article", { class: "card", id: "cluster-" + k, "aria-labelledby": "cluster-name-" + k, style: { "--mark": colorOf(k) } },
      make("header", {},
        make("div", {}, make("h3", { id: "cluster-name-" + k }, mark(k), clusterName(k)),
          make("div", { class: "size" }, `${rowsOf(cluster.size)}, ${percent(cluster.size / n)}`, classes ? commonClass(k) : null)),
        DATA.map && cluster.size ? make("button", { type: "button", "aria-label": "Show cluster " + k + " on the map", click: () => {
          only("clusters", k);
          byId("map").scrollIntoView();
        } }, "On the map") : null),
      make("div", { class: "share", "aria-hidden": "true" }, make("i", { style: { width: (100 * cluster.size) / n + "%" } })),
      make("div", { class: "body" + (centre ? " centred" : "") }, centre, groups));
  };

  const meanDoubt = () => {
    const sums = new Float64Array(K);
    for (let row = 0; row < n; row++) sums[labels[row]] += doubt[row];
    return DATA.clusters.map((cluster, k) => (cluster.size ? sums[k] / cluster.size : 0));
  };
  const MANY_CARDS = 48;  // at once: a thousand would take seconds to lay out
  const buildCards = () => {
    const made = [];
    let most = MANY_CARDS;
    const orders = { number: () => 0, largest: (a, b) => DATA.clusters[b].size - DATA.clusters[a].size };
    if (doubt) {
      const means = meanDoubt();
      orders["most doubtful"] = (a, b) => means[b] - means[a];
    }
    const select = byId("card-order");
    select.append(...Object.keys(orders).map((name) => make("option", { value: name }, "by " + name)));
    const lay = () => {
      const ranks = DATA.clusters.map((_, k) => k).sort(orders[select.value]).slice(0, most);
      byId("cards").replaceChildren(...ranks.map((k) => (made[k] ||= card(DATA.clusters[k], k))));
      const left = K - ranks.length;
      byId("more").hidden = left === 0;
      byId("more").textContent = `Show ${count(Math.min(left, MANY_CARDS))} more of ${count(left)} clusters`;
    };
    byId("cards").classList.toggle("slim", DATA.clusters.every((cluster) => !cluster.typical && !cluster.words && !cluster.features));
    select.addEventListener("change", lay);
    byId("more").addEventListener("click", () => {
      most += MANY_CARDS;
      lay();
    });
    lay();
    byId("clusters-note").textContent = [
      doubt ? "Typical rows lie nearest to their centre. Doubt is the distance to the own centre over that to the next: at 1 a row is as near to another cluster." : "",
      DATA.note,
    ].join(" ");
  };

  // ---------------------------------------------------------------------------------------------
  // tables

  const PAGE = 25;
  const reorder = () => {
    order = [];
    for (let row = 0; row < n; row++) if (shown[row]) order.push(row);
    if (state.order === "doubtful") order.sort((a, b) => doubt[b] - doubt[a] || a - b);
    if (state.order === "sure") order.sort((a, b) => doubt[a] - doubt[b] || a - b);
    if (state.order === "cluster") order.sort((a, b) => labels[a] - labels[b] || a - b);
    fillRows();
  };
  const fillRows = () => {
    const pages = Math.max(1, Math.ceil(order.length / PAGE));
    const rows = order.slice(state.page * PAGE, (state.page + 1) * PAGE);
    const head = ["Row", DATA.ids && "Name", (DATA.texts || DATA.table || cellOf.size) && "", "Cluster", classes && "Class", doubt && "Doubt"];
    const titles = { "": DATA.texts ? "Text" : DATA.table ? "Features" : "Picture" };
    const body = rows.map((row) => {
      const what = cellOf.has(row) ? picture(cellOf.get(row), 36, "Picture of " + nameOf(row))
        : DATA.texts ? make("span", { class: "clamp" }, textOf(row))
        : DATA.table ? inBrief(row, [...DATA.table.names.keys()].slice(0, 4)) : null;
      return make("tr", { click: () => pinFrom(row) },
        make("th", { scope: "row" }, make("button", { type: "button", "aria-label": "Show row " + row }, String(row))),
        DATA.ids ? make("td", { class: "name", dir: "auto" }, DATA.ids[row]) : null,
        DATA.texts || DATA.table || cellOf.size ? make("td", { class: DATA.texts || DATA.table ? "what" : "" }, what) : null,
        make("td", {}, mark(labels[row]), String(labels[row])),
        classes ? make("td", { class: "class", dir: "auto" }, classNames[classes[row]]) : null,
        doubt ? make("td", { class: "number" }, (doubt[row] / 255).toFixed(2)) : null);
    });
    byId("row-table").replaceChildren(
      make("thead", {}, make("tr", {}, head.filter((name) => name || name === "").map((name) =>
        make("th", { scope: "col", class: name === "Doubt" ? "number" : null }, name in titles ? titles[name] : name)))),
      make("tbody", {}, body));
    byId("page").textContent = order.length ? `Page ${count(state.page + 1)} of ${count(pages)}` : "No rows";
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page >= pages - 1;
  };
  const buildRows = () => {
    const orders = [["row", "by number"], ["cluster", "by cluster"]];
    if (doubt) orders.push(["doubtful", "most doubtful first"], ["sure", "surest first"]);
    byId("row-order").append(...orders.map(([value, title]) => make("option", { value }, title)));
    byId("row-order").addEventListener("change", (event) => {
      state.order = event.target.value;
      state.page = 0;
      reorder();
    });
    const turn = (by) => { state.page += by; fillRows(); };
    byId("previous").addEventListener("click", () => turn(-1));
    byId("next").addEventListener("click", () => turn(1));
  };

  // which ink is read best depends on the theme in the middle of the scale
  const heat = (value, part) => make("td", {
    class: part > 0.8 ? "hot" : part > 0.55 ? "warm" : part ? "" : "zero", style: { "--heat": 100 * part + "%" },
  }, value);
  const onlyBoth = (k, c) => {
    showAll();
    state.clusters.add(k);
    state.classes.add(c);
    refilter();
    if (DATA.map) byId("map").scrollIntoView();
  };

  const buildConfusion = () => {
    if (!DATA.confusion) return;
    byId("classes").hidden = false;
    const { clusters, counts } = DATA.confusion;
    byId("confusion").append(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Class"), clusters.map((k) =>
        make("th", { scope: "col" }, mark(k), " " + k)))),
      make("tbody", {}, counts.map((row, c) => {
        const total = row.reduce((a, b) => a + b, 0);
        return make("tr", {}, make("th", { scope: "row", title: classNames[c], dir: "auto" }, classNames[c]),
          row.map((value, i) => heat(value ? make("button", {
            type: "button", title: `Show ${rowsOf(value)} of class ${classNames[c]} in cluster ${clusters[i]}`,
            click: () => onlyBoth(clusters[i], c),
          }, count(value)) : "0", value / total)));
      })));
  };

  const buildRestarts = () => {
    const found = DATA.restarts;
    if (!found) return;
    byId("restarts").hidden = false;
    byId("restart-table").append(
      make("caption", {}, "Each restart; the one that is shown is marked"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "restart"), found.columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, found.rows.map((row, r) =>
        make("tr", { class: r === found.best ? "best" : "" },
          make("th", { scope: "row" }, r === found.best ? `${r} (shown)` : String(r)),
          row.map((cell, i) => make("td", { class: found.columns[i] === "status" ? "status" : "" }, cell))))));
    if (!found.agreement) {
      byId("agreement").parentElement.hidden = true;
      return;
    }
    byId("agreement").append(
      make("caption", {}, "Agreement, as adjusted Rand index"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "restart"), found.agreement.map((_, r) => make("th", { scope: "col" }, String(r))))),
      make("tbody", {}, found.agreement.map((row, r) =>
        make("tr", {}, make("th", { scope: "row" }, String(r)),
          row.map((value) => heat(value === null ? "" : value.toFixed(2), Math.max(0, value || 0)))))));
  };

  // ---------------------------------------------------------------------------------------------
  // curves

  const ticks = (low, high) => {
    const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
    const found = [];
    for (let at = Math.ceil(low / size - 1e-9) * size; at <= high + 1e-9 * size; at += size) found.push(at);
    return found;
  };
  // 1, 2 and 5 of every power of ten, or if these are many 1 alone, or every few powers
  const logTicks = (low, high) => {
    const every = Math.ceil((high - low) / 4);
    const digits = high - low < 1.5 ? [1, 2, 5] : [1];
    const found = [];
    for (let power = Math.floor(low); power <= high; power++) {
      if (power % every === 0) for (const digit of digits) found.push(digit * 10 ** power);
    }
    return found.filter((at) => Math.log10(at) >= low && Math.log10(at) <= high);
  };

  const chart = ({ title, x, lines, best, breaks = [], label, dots = null }) => {
    const W = 380, H = 200, left = 46, right = 10, top = 14, bottom = 34;
    const values = lines.flat().filter((value) => value !== null);
    let [low, high] = extent(values);
    const log = low > 0 && high / low > 20;
    const figure = make("figure", { class: "curve" }, make("figcaption", {}, make("span", {}, title),
      log ? make("span", { class: "size" }, "logarithmic") : null));
    if (!values.length) return figure;
    const f = (value) => (log ? Math.log10(value) : value);
    [low, high] = [f(low), f(high)];
    if (high === low) [low, high] = [low - 0.5, high + 0.5];
    const first = x[0], span = x[x.length - 1] - first || 1;
    const px = (at) => left + ((at - first) / span) * (W - left - right);
    const py = (value) => H - bottom - ((f(value) - low) / (high - low)) * (H - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label":
      `${title}: from ${brief(values[0])} to ${brief(values[values.length - 1])}` });
    const marks = log ? logTicks(low, high) : ticks(low, high);
    for (const at of marks) {
      svg.append(draw("path", { class: "axis", d: `M${left} ${py(at)}H${W - right}` }),
        draw("text", { x: left - 6, y: py(at) + 4, "text-anchor": "end" }, brief(Number(at.toPrecision(12)))));
    }
    for (const at of ticks(first, first + span).filter((at) => Number.isInteger(at))) {
      svg.append(draw("text", { x: px(at), y: H - bottom + 16, "text-anchor": "middle" }, count(at)));
    }
    svg.append(draw("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, label));
    breaks.forEach(([i, name], phase) => {
      const at = px(x[i]), next = phase + 1 < breaks.length ? px(x[breaks[phase + 1][0]]) : W;
      if (i) svg.append(draw("path", { class: "phase", d: `M${at} ${top}V${H - bottom}` }));
      if (next - at > 6 * name.length + 8) svg.append(draw("text", { x: at + 4, y: top - 3 }, name));
    });
    lines.map((line, r) => [line, r]).sort(([, a], [, b]) => (a === best) - (b === best)).forEach(([line, r]) => {
      const pieces = [];
      let open = false;
      line.forEach((value, i) => {
        open = open && !breaks.some(([start]) => start === i);  // a phase has a loss of its own
        if (value !== null && !open) pieces.push([]);
        if (value !== null) pieces[pieces.length - 1].push([x[i], value]);
        open = value !== null;
      });
      const place = ([at, value]) => `${px(at).toFixed(1)} ${py(value).toFixed(1)}`;
      const kind = r === best ? " best" : "";
      svg.append(draw("path", { class: "line" + kind, d: pieces.map((piece) => "M" + piece.map(place).join("L")).join("") }));
      const dotted = dots !== null && r === best;
      for (const piece of pieces.filter((piece) => dotted || piece.length === 1)) {  // one place is no line
        for (const [at, value] of piece) {
          svg.append(draw("circle", { class: "dot" + kind, cx: px(at), cy: py(value), r: at === dots ? 6 : 3 }));
        }
      }
    });
    figure.append(svg);
    return figure;
  };

  const buildCurves = () => {
    if (!DATA.history.length) return;
    byId("training").hidden = false;
    const best = DATA.restarts ? DATA.restarts.best : 0;
    byId("curves").append(...DATA.history.map((curve) => {
      const breaks = [];
      curve.phases.forEach((phase, i) => {
        if (i === 0 || phase !== curve.phases[i - 1]) breaks.push([i, phase]);
      });
      const lines = curve.values[0].map((_, r) => curve.values.map((row) => row[r]));
      return chart({ title: curve.name, x: curve.steps, lines, best, breaks, label: "steps" });
    }));
  };

  const buildChoice = () => {
    const found = DATA.k_curve;
    if (!found) return;
    byId("choice").hidden = false;
    const body = byId("choice-body");
    body.append(make("div", { class: "curves" }, Object.entries(found.scores).map(([name, values]) =>
      chart({ title: name, x: found.k, lines: [values], best: 0, label: "number of clusters", dots: found.chosen }))));
    if (found.reasons.length) body.append(make("ul", { class: "reasons" }, found.reasons.map((reason) => make("li", {}, reason))));
  };

  // ---------------------------------------------------------------------------------------------
  // the rest of the page

  // A spreadsheet would compute what begins so; numbers stay as they are.
  const FORMULA = /^[=@+\-\t\r]/;
  const csvCell = (value) => {
    const safe = FORMULA.test(value) && !Number.isFinite(Number(value)) ? "'" + value : value;
    return /[",\r\n]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  };
  const download = () => {
    const head = ["row", DATA.ids && "name", "cluster", classes && "class", doubt && "doubt"].filter(Boolean);
    const lines = [head.join(",")];
    for (let row = 0; row < n; row++) {
      if (!shown[row]) continue;
      const cells = [String(row)];
      if (DATA.ids) cells.push(DATA.ids[row]);
      cells.push(String(labels[row]));
      if (classes) cells.push(classNames[classes[row]]);
      if (doubt) cells.push((doubt[row] / 255).toFixed(3));
      lines.push(cells.map(csvCell).join(","));
    }
    const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    make("a", { href: url, download: "labels.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    redraw();
  };

  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", () =>
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  let onScreen = "light";
  addEventListener("beforeprint", () => {
    onScreen = document.documentElement.dataset.theme;
    setTheme("light");
    if (DATA.map) paint();  // the next frame would be too late
  });
  addEventListener("afterprint", () => setTheme(onScreen));
  byId("download").addEventListener("click", download);
  byId("title").textContent = document.title = visible(DATA.title);
  byId("subtitle").textContent = visible(DATA.subtitle);
  byId("made").textContent = `Made by concrete-kmeans ${DATA.version}. This file holds everything it shows and loads nothing.`;
  const inGroups = new Map();
  for (const figure of DATA.figures) inGroups.set(figure.group, [...(inGroups.get(figure.group) || []), figure]);
  byId("figures").append(...[...inGroups].map(([group, figures]) =>
    make("div", { class: "group" }, make("h2", {}, group), make("dl", {}, figures.map((figure) =>
      make("div", {}, make("dt", {}, figure.name), make("dd", {}, figure.value)))))));
  byId("meanings").append(...DATA.figures.filter((figure) => figure.help).flatMap((figure) =>
    [make("dt", {}, figure.name), make("dd", {}, figure.help)]));

  buildSide();
  buildCards();
  buildConfusion();
  buildRestarts();
  buildCurves();
  buildChoice();
  buildRows();
  if (DATA.map) {
    byId("map-caption").textContent = visible(DATA.map.caption);
    canvas.setAttribute("aria-label", `Map of ${count(n)} rows in ${K} clusters`);
    listenToMap();
  } else {
    document.querySelector(".stage").hidden = byId("map-keys").hidden = true;
    document.querySelector(".map").classList.add("bare");
    byId("map-title").textContent = "Filter";
  }
  byId("sections").append(...[...document.querySelectorAll("main > section[id]")].filter((section) => !section.hidden)
    .map((section) => make("li", {}, make("a", { href: "#" + section.id }, section.querySelector("h2").textContent))));
  refilter();
})();
