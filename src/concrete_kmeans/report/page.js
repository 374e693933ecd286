
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

  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name, value);
      else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
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
  const percent = (part) => (100 * part).toFixed(part < 0.0995 ? 1 : 0) + "\u00a0%";
  const brief = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };
  const nameOf = (row) => (DATA.ids ? DATA.ids[row] : "Row " + row);

  // ---------------------------------------------------------------------------------------------
  // colours and marks

  const SHAPES = ["disc", "square", "diamond"];
  const colorOf = (group) => DATA.colors[group % DATA.colors.length];
  const shapeOf = (group) => SHAPES[Math.floor(group / 10) % SHAPES.length];
  const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mark = (group) =>
    make("span", { class: "mark " + shapeOf(group), style: { "--mark": colorOf(group) }, "aria-hidden": "true" });
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
  const valueAt = (row, column) =>
    DATA.table.low[column] + DATA.table.step[column] * columns[column * n + row];

  const clusterName = (k) => "Cluster " + k;
  const item = (row, side) => {
    const facts = make("div", { class: "facts" }, make("div", { class: "id" }, nameOf(row)));
    facts.append(make("div", { class: "line" }, mark(labels[row]), make("b", {}, clusterName(labels[row])),
      doubt ? "doubt " + (doubt[row] / 255).toFixed(2) : null));
    if (classes) facts.append(make("div", { class: "line" }, "Class ", make("b", {}, classNames[classes[row]])));
    if (DATA.texts) facts.append(make("div", { class: "text" }, DATA.texts[row]));
    if (DATA.table) {
      facts.append(make("table", { class: "values" }, make("tbody", {}, DATA.table.names.map((name, column) =>
        make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, brief(valueAt(row, column))))))));
    }
    const cell = cellOf.get(row);
    if (cell === undefined) {
      if (cellOf.size) facts.append(make("div", { class: "line" }, "Its picture is not in this file."));
      return make("div", { class: "item bare" }, facts);
    }
    return make("div", { class: "item" }, picture(cell, side, "Picture of " + nameOf(row)), facts);
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
    byId("count").textContent = all ? count(n) + " rows" : count(total) + " of " + count(n) + " rows";
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

  const groupsNow = () => (state.colorBy === "class" ? classes : labels);

  const paletteNow = () => {
    if (state.colorBy === "doubt") return Array.from({ length: 256 }, (_, i) => ramp(i / 255));
    const size = state.colorBy === "class" ? classNames.length : K;
    return Array.from({ length: size }, (_, i) => rgbOf(colorOf(i)));
  };

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
    const base = Math.max(1.1, Math.min(4.6, 7.6 - 1.32 * Math.log10(n)));
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
    const groups = groupsNow(), colors = paletteNow();
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
      if (byDoubt) plot(row, colors[doubt[row]], 1, 0);
      else plot(row, colors[groups[row]], 1, Math.floor(groups[row] / 10) % SHAPES.length);
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
      context.fillStyle = state.colorBy === "doubt" ? `rgb(${ramp(doubt[row] / 255)})` : colorOf(groups[row]);
      context.fillRect(x - w / 2 - edge, y - h / 2 - edge, w + 2 * edge, h + 2 * edge);
      context.drawImage(sheet, (cell % atlas.columns) * atlas.cell_width,
        Math.floor(cell / atlas.columns) * atlas.cell_height, atlas.width, atlas.height,
        x - w / 2, y - h / 2, w, h);
    }
  };

  const placeOf = (row) => [mapX[row] * view.scale + view.x, mapY[row] * view.scale + view.y];

  // the row of each group that is nearest to the middle of the group
  const middles = (groups, size) => {
    const members = Array.from({ length: size }, () => []);
    for (let row = 0; row < n; row++) members[groups[row]].push(row);
    return members.map((rows) => {
      if (!rows.length) return -1;
      const middle = (places) => {
        const sorted = Float64Array.from(rows, (row) => places[row]).sort();
        return sorted[sorted.length >> 1];
      };
      const x = middle(mapX), y = middle(mapY);
      let best = rows[0], least = Infinity;
      for (const row of rows) {
        const far = (mapX[row] - x) ** 2 + (mapY[row] - y) ** 2;
        if (far < least) [best, least] = [row, far];
      }
      return best;
    });
  };
  const middlesOf = new Map();

  const paintNames = (groups, back) => {
    const byClass = state.colorBy === "class";
    if (!middlesOf.has(byClass)) middlesOf.set(byClass, middles(groups, byClass ? classNames.length : K));
    const wanted = byClass ? state.classes : state.clusters;
    context.font = `650 ${13 * ratio()}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    middlesOf.get(byClass).forEach((row, group) => {
      if (row < 0 || (wanted.size && !wanted.has(group))) return;
      const name = byClass ? classNames[group].slice(0, 24) : String(group);
      const [x, y] = placeOf(row), half = context.measureText(name).width / 2 + 6 * ratio();
      context.beginPath();
      context.roundRect(x - half, y - 10 * ratio(), 2 * half, 20 * ratio(), 10 * ratio());
      context.fillStyle = `rgba(${back}, .86)`;
      context.fill();
      context.lineWidth = 1.6 * ratio();
      context.strokeStyle = colorOf(group);
      context.stroke();
      context.fillStyle = getComputedStyle(document.body).color;
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
    const margin = 28 * ratio();
    view.scale = view.fit = Math.min((canvas.width - 2 * margin) / Math.max(right - left, 1),
      (canvas.height - 2 * margin) / Math.max(bottom - top, 1));
    view.x = (canvas.width - view.scale * (left + right)) / 2;
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
      panel.append(item(row, 112), make("div", { class: "buttons" },
        make("button", { type: "button", click: () => only("clusters", k) }, "Only cluster " + k),
        make("button", { type: "button", click: () => pin(-1) }, "Let go")));
      reveal(row);
    }
    redraw();
  };
  const reveal = (row) => {
    if (!DATA.map) return;
    const [x, y] = placeOf(row), margin = 20 * ratio();
    const out = x < margin || y < margin || x > canvas.width - margin || y > canvas.height - margin;
    if (out) move(canvas.width / 2 - x, canvas.height / 2 - y);
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
    make("div", {}, make("div", { class: "legend-title", id: "legend-" + kind }, title),
      make("ul", { class: "legend", "aria-labelledby": "legend-" + kind }, names.map((name, group) =>
        make("li", {}, make("button", {
          type: "button", "data-kind": kind, "data-group": group, "aria-pressed": "false",
          click: () => toggle(kind, group),
          pointerenter: () => { state.lit = { kind, group }; redraw(); },
          pointerleave: () => { state.lit = null; redraw(); },
        }, mark(group), make("span", { class: "label", title: name }, name),
        make("span", { class: "size" }, count(sizes[group])))))));

  const buildSide = () => {
    const choices = [["cluster", "Cluster"]];
    if (classes) choices.push(["class", "Class"]);
    if (doubt) choices.push(["doubt", "Doubt"]);
    for (const [value, title] of choices) {
      byId("color-by").append(make("label", {}, make("input", {
        type: "radio", name: "color-by", value, checked: value === "cluster",
        change: () => { state.colorBy = value; byId("scale").hidden = value !== "doubt"; redraw(); },
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
    byId("search").placeholder = DATA.texts ? "Words" : "Name of a row";
    byId("search").addEventListener("input", (event) => {
      state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      refilter();
    });
    byId("clear").addEventListener("click", showAll);
  };

  // ---------------------------------------------------------------------------------------------
  // cards

  const commonClass = (k) => {
    const counts = new Array(classNames.length).fill(0);
    for (let row = 0; row < n; row++) if (labels[row] === k) counts[classes[row]]++;
    const most = counts.indexOf(Math.max(...counts));
    return counts[most] ? `mostly ${classNames[most]} (${percent(counts[most] / DATA.clusters[k].size)})` : null;
  };

  const member = (row) => {
    const name = nameOf(row);
    if (cellOf.has(row)) {
      return make("button", { type: "button", title: name, click: () => pinFrom(row) },
        picture(cellOf.get(row), 38, "Show " + name));
    }
    const what = DATA.texts ? DATA.texts[row]
      : DATA.table ? DATA.table.names.slice(0, 3).map((label, column) => `${label} ${brief(valueAt(row, column))}`).join(", ")
      : "";
    return make("li", {}, make("button", { type: "button", click: () => pinFrom(row) },
      make("span", { class: "clamp" }, DATA.ids || !DATA.texts ? make("span", { class: "id" }, name + " ") : null, what)));
  };
  const members = (title, rows) => {
    if (!rows || !rows.length) return null;
    const pictures = rows.some((row) => cellOf.has(row));
    return make("div", {}, make("h4", {}, title),
      make(pictures ? "div" : "ul", { class: pictures ? "thumbs" : "members" }, rows.map(member)));
  };

  const bars = (features) => {
    const most = Math.max(1, ...features.map((feature) => Math.abs(feature.difference)));
    return make("div", {}, make("h4", {}, "Features against the rest, in standard deviations"),
      make("table", { class: "bars" }, make("tbody", {}, features.map((feature) =>
        make("tr", { title: `${feature.name}: ${brief(feature.inside)} inside, ${brief(feature.outside)} outside` },
          make("th", { scope: "row" }, feature.name),
          make("td", {}, make("div", { class: "bar" }, make("i", {
            class: feature.difference > 0 ? "up" : "down",
            style: { width: (50 * Math.abs(feature.difference)) / most + "%" },
          }))),
          make("td", { class: "number" }, (feature.difference > 0 ? "+" : "−") + Math.abs(feature.difference).toFixed(1)))))));
  };

  const card = (cluster, k) => {
    const groups = make("div", { class: "groups" },
      cluster.words && cluster.words.length
        ? make("div", {}, make("h4", {}, "Words that set it apart"), make("ul", { class: "words" }, cluster.words.map((word) => make("li", {}, word))))
        : null,
      cluster.features && cluster.features.length ? bars(cluster.features) : null,
      members("Most typical", cluster.typical),
      members("Most doubtful", cluster.doubtful));
    const centre = atlas && atlas.centers
      ? make("div", {}, make("h4", {}, "Centre"), picture(k, 88, "Centre of cluster " + k)) : null;
    const common = classes ? commonClass(k) : null;
    return make("article", { class: "card", id: "cluster-" + k, "aria-labelledby": "cluster-name-" + k, style: { "--mark": colorOf(k) } },
      make("header", {},
        make("div", {}, make("h3", { id: "cluster-name-" + k }, mark(k), clusterName(k)),
          make("div", { class: "size" }, `${count(cluster.size)} rows, ${percent(cluster.size / n)}`, common ? " · " + common : "")),
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
  const buildCards = () => {
    const made = DATA.clusters.map(card);
    const orders = { number: () => 0, largest: (a, b) => DATA.clusters[b].size - DATA.clusters[a].size };
    if (doubt) {
      const means = meanDoubt();
      orders["most doubtful"] = (a, b) => means[b] - means[a];
    }
    const select = byId("card-order");
    select.append(...Object.keys(orders).map((name) => make("option", { value: name }, "by " + name)));
    const lay = () => {
      const ranks = made.map((_, k) => k).sort(orders[select.value]);
      byId("cards").replaceChildren(...ranks.map((k) => made[k]));
    };
    select.addEventListener("change", lay);
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
        : DATA.texts ? make("span", { class: "clamp" }, DATA.texts[row])
        : DATA.table ? DATA.table.names.slice(0, 4).map((label, column) => `${label} ${brief(valueAt(row, column))}`).join(", ") : "";
      return make("tr", { click: () => pinFrom(row) },
        make("th", { scope: "row" }, make("button", { type: "button", "aria-label": "Show row " + row }, String(row))),
        DATA.ids ? make("td", { class: DATA.texts ? "" : "what" }, DATA.ids[row]) : null,
        DATA.texts || DATA.table || cellOf.size ? make("td", { class: DATA.texts || DATA.table ? "what" : "" }, what) : null,
        make("td", {}, mark(labels[row]), String(labels[row])),
        classes ? make("td", {}, classNames[classes[row]]) : null,
        doubt ? make("td", { class: "number" }, (doubt[row] / 255).toFixed(2)) : null);
    });
    byId("row-table").replaceChildren(
      make("thead", {}, make("tr", {}, head.filter((name) => name || name === "").map((name) =>
        make("th", { scope: "col" }, name in titles ? titles[name] : name)))),
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

  const heat = (value, part) => make("td", {
    class: part > 0.55 ? "hot" : part ? "" : "zero", style: { "--heat": 100 * part + "%" },
  }, value);

  const buildConfusion = () => {
    if (!DATA.confusion) return;
    byId("classes").hidden = false;
    const { clusters, counts } = DATA.confusion;
    byId("confusion").append(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Class"), clusters.map((k) =>
        make("th", { scope: "col" }, mark(k), " " + k)))),
      make("tbody", {}, counts.map((row, c) => {
        const total = row.reduce((a, b) => a + b, 0);
        return make("tr", {}, make("th", { scope: "row", title: classNames[c] }, classNames[c]),
          row.map((value) => heat(count(value), value / total)));
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
          row.map((value) => heat(value === null ? "" : value.toFixed(2), Math.max(0, value || 0) * 0.9))))));
  };

  // ---------------------------------------------------------------------------------------------
  // curves

  const ticks = (low, high) => {
    const rough = (high - low) / 3 || 1, power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
    const found = [];
    for (let at = Math.ceil(low / size) * size; at <= high + 1e-9 * size; at += size) found.push(at);
    return found;
  };

  const chart = ({ title, x, lines, best, breaks = [], label, dots = null }) => {
    const W = 380, H = 200, left = 46, right = 10, top = 14, bottom = 34;
    const values = lines.flat().filter((value) => value !== null);
    const figure = make("figure", { class: "curve" }, make("figcaption", {}, title));
    if (!values.length) return figure;
    let low = Math.min(...values), high = Math.max(...values);
    const log = low > 0 && high / low > 20;
    const f = (value) => (log ? Math.log10(value) : value);
    [low, high] = [f(low), f(high)];
    if (high === low) [low, high] = [low - 0.5, high + 0.5];
    const first = x[0], span = x[x.length - 1] - first || 1;
    const px = (at) => left + ((at - first) / span) * (W - left - right);
    const py = (value) => H - bottom - ((f(value) - low) / (high - low)) * (H - top - bottom);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label":
      `${title}: from ${brief(values[0])} to ${brief(values[values.length - 1])}` });
    const marks = log ? ticks(low, high).map((at) => 10 ** at) : ticks(low, high);
    for (const at of marks) {
      svg.append(draw("path", { class: "axis", d: `M${left} ${py(at)}H${W - right}` }),
        draw("text", { x: left - 6, y: py(at) + 4, "text-anchor": "end" }, brief(Number(at.toPrecision(2)))));
    }
    for (const at of ticks(first, first + span).filter((at) => Number.isInteger(at))) {
      svg.append(draw("text", { x: px(at), y: H - bottom + 16, "text-anchor": "middle" }, count(at)));
    }
    svg.append(draw("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, label + (log ? " (logarithmic)" : "")));
    for (const [at, name] of breaks) {
      if (at > first) svg.append(draw("path", { class: "phase", d: `M${px(at)} ${top}V${H - bottom}` }));
      svg.append(draw("text", { x: px(Math.max(at, first)) + 4, y: top - 3 }, name));
    }
    lines.map((line, r) => [line, r]).sort(([, a], [, b]) => (a === best) - (b === best)).forEach(([line, r]) => {
      let path = "", open = false;
      line.forEach((value, i) => {
        if (value !== null) path += `${open ? "L" : "M"}${px(x[i]).toFixed(1)} ${py(value).toFixed(1)}`;
        open = value !== null;
      });
      svg.append(draw("path", { class: "line" + (r === best ? " best" : ""), d: path }));
      if (dots !== null && r === best) {
        line.forEach((value, i) => {
          if (value !== null) svg.append(draw("circle", { cx: px(x[i]), cy: py(value), r: x[i] === dots ? 6 : 3 }));
        });
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
        if (i === 0 || phase !== curve.phases[i - 1]) breaks.push([i ? curve.steps[i - 1] : curve.steps[0], phase]);
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

  const csvCell = (value) => (/[",\r\n]/.test(value) ? '"' + value.replace(/"/g, '""') + '"' : value);
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
  byId("download").addEventListener("click", download);
  byId("title").textContent = DATA.title;
  byId("subtitle").textContent = DATA.subtitle;
  byId("made").textContent = `Made by concrete-kmeans ${DATA.version}. This file holds everything it shows and loads nothing.`;
  byId("figures").append(...DATA.figures.map((figure) =>
    make("div", {}, make("dt", {}, figure.name), make("dd", {}, figure.value))));
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
    byId("map-caption").textContent = DATA.map.caption;
    canvas.setAttribute("aria-label", `Map of ${count(n)} rows in ${K} clusters`);
    listenToMap();
  } else {
    document.querySelector(".stage").hidden = byId("map-help").hidden = true;
    document.querySelector(".map").classList.add("bare");
    byId("map-title").textContent = "Filter";
  }
  byId("sections").append(...[...document.querySelectorAll("main > section[id]")].filter((section) => !section.hidden)
    .map((section) => make("li", {}, make("a", { href: "#" + section.id }, section.querySelector("h2").textContent))));
  refilter();
})();
