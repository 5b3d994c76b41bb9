// The plots: a map, all heads of a layer, all heads of the model, masks, positions and learning curves.

const cells = (one, rows) => rows.map((row, n) => Array.from(row, (weight, m) => (isVisible(one, n, m) ? tone(weight) : null)));
// Keys that take much more than their share of this map: with the mean share that they get from queries that see them.
const ALPHA = 5, MOST_SINKS = 6;
function sinksOf(rows) {
  if (layer().peaks) return []; // largest weights are no shares
  const [N, M] = layer().shape;
  const totals = rows.map((row) => row.reduce((sum, weight) => sum + Math.abs(weight), 0) || 1);
  const found = [];
  for (let m = 0; m < M; m++) {
    let sum = 0, queries = 0;
    for (let n = 0; n < N; n++) if (visible(n, m)) { sum += Math.abs(rows[n][m]) / totals[n]; queries++; }
    if (queries >= N / ALPHA && sum / queries > ALPHA / M) found.push({ key: m, received: sum / queries });
  }
  return found.sort((a, b) => b.received - a.received).slice(0, MOST_SINKS);
}

const largestOf = (maps) => {
  let largest = 1e-9;
  for (const rows of maps) for (const row of rows) for (const weight of row) largest = Math.max(largest, Math.abs(weight));
  return largest;
};

const LABELLED = 44; // largest number of tokens whose axis shows them

function isLabelled(which) {
  return tokens(which).length <= (narrow.matches ? 24 : LABELLED);
}

// Every token where there are few, else the sinks alone, which are bold.
function tokenAxis(which, title, sinks) {
  const list = tokens(which);
  const few = isLabelled(which);
  const bold = new Set(sinks.map((sink) => sink.key));
  const apart = [];
  for (const { key } of sinks) if (apart.every((other) => Math.abs(other - key) > list.length / 20)) apart.push(key);
  const named = few ? list.map((_, index) => index) : apart; // names do not overlap
  const text = (index) => escaped(short(list[index].text, 10)) || "∅";
  const labels = {
    ...(named.length ? { tickmode: "array", tickvals: named, ticktext: named.map((index) => (bold.has(index) ? `<b>${text(index)}</b>` : text(index))) } : {}),
    ...(few ? { tickfont: { size: list.length > 28 ? 9 : 11 } } : { title: { text: title, font: { size: 12 } } }),
  };
  return { showgrid: false, zeroline: false, automargin: true, ...labels };
}

function drawMap() {
  const [N, M] = layer().shape;
  const signed = isSigned();
  const rests = weights.map(restOf).filter((rest) => rest !== null);
  const largest = largestOf([weights, [rests]]);
  const end = Math.abs(tone(largest)) || 1e-9;
  const sinks = sinksOf(weights);
  const queries = tokens("queries").map((token, n) => `query ${n} “${escaped(short(token.text, 24))}”`);
  const keys = tokens("keys").map((token, m) => `key ${m} “${escaped(short(token.text, 24))}”`);
  const trace = {
    type: "heatmap", z: cells(layer(), weights), zmin: signed ? -end : 0, zmax: end, colorscale: scaleOf(signed), hoverongaps: false,
    text: weights.map((row, n) => Array.from(row, (weight, m) => `${queries[n]}<br>${keys[m]}<br><b>${number(weight)}</b>`)),
    hovertemplate: "%{text}<extra></extra>",
    colorbar: { thickness: 12, len: 0.9, outlinewidth: 0, ...ticksOf(largest, signed) },
  };
  const width = $("map").clientWidth || 360;
  const height = Math.max(220, Math.min(620, (width - 110) * (N / M) + 80));
  const none = rests.length ? [{
    ...trace, x0: M + 1, dx: 1, z: rests.map((rest) => [tone(rest)]), showscale: false,
    text: rests.map((rest, n) => [`${queries[n]}<br>no token<br><b>${number(rest)}</b>`]),
  }] : [];
  const across = tokenAxis("keys", "key", sinks);
  if (none.length) Object.assign(across, { tickmode: "array", tickvals: [...(across.tickvals ?? []), M + 1], ticktext: [...(across.ticktext ?? []), "<i>no token</i>"] });
  draw("map", [trace, ...none], {
    height, margin: { l: 46, r: 8, t: 8, b: 46 }, shapes: marks(),
    xaxis: { ...across, tickangle: isLabelled("keys") || sinks.length || none.length ? -60 : 0, range: [-0.5, M - 0.5 + 2 * none.length] },
    yaxis: { ...tokenAxis("queries", "query", []), range: [N - 0.5, -0.5] },
  });
  $("sinks").textContent = sinks.length ? `Keys that get over 5 / M of the attention, of M keys (sinks; in a short text perhaps content): ${sinks.map((sink) => `${named("keys", sink.key)} ${number(sink.received)}`).join(", ")}.` : "";
  $("map-title").textContent = `Layer ${layer().name}, ${headName(state.head)}${layer().each === 2 ? `: ${{ difference: "first − λ · second", first: "first map", second: "second map" }[state.map]}` : ""}`;
  sayCell();
}

function marks() {
  const [, M] = layer().shape;
  const line = { color: style("--text"), width: 1 };
  return [
    { type: "rect", x0: -0.5, x1: M - 0.5, y0: state.query - 0.5, y1: state.query + 0.5, line: { ...line, dash: "dot" } },
    { type: "rect", x0: state.key - 0.5, x1: state.key + 0.5, y0: state.query - 0.5, y1: state.query + 0.5, line: { ...line, width: 2 } },
  ];
}

function markCell() {
  Plotly.relayout($("map"), { shapes: marks() });
  sayCell();
}

function sayCell() {
  const seen = visible(state.query, state.key);
  $("cell").textContent = `Query ${named("queries", state.query)}, key ${named("keys", state.key)}: ` +
    (seen ? number(weights[state.query][state.key]) : hiddenBy(state.key)) + ".";
}

const NAMES = {
  first: "share on the first token", previous: "share on the previous token", induction: "share on what followed the token before",
  entropy: "entropy, nats", distance: "mean distance, tokens", negative: "negative share",
};
const RANKED = 10; // heads in the ranking

function drawMeasureChoice() {
  const isSelf = model().layers.every((one) => one.queries === one.keys);
  const repeats = isSelf && model().layers.every((one) => followers(model().sequences[one.queries]));
  const has = { negative: model().layers.some((one) => one.each === 2), distance: isSelf, previous: isSelf && model().segment === 1, induction: repeats };
  for (const option of $("measure").options) option.hidden = option.disabled = has[option.value] === false;
  if ($("measure").selectedOptions[0].disabled) $("measure").value = "first";
}

function drawOverview() {
  const measure = $("measure").value;
  const layers = measured();
  for (const one of layers) one.measures ??= Array.from({ length: one.heads }, (_, head) => measures(one, head, model().sequences[one.queries], model().segment));
  const heads = Math.max(...layers.map((one) => one.heads));
  const z = layers.map((one) => Array.from({ length: heads }, (_, head) => (head < one.heads ? one.measures[head][measure] : null)));
  const most = Math.max(1e-6, ...z.flat().filter((value) => value !== null));
  draw("overview", [{
    type: "heatmap", z, zmin: 0, zmax: most, xgap: 2, ygap: 2,
    colorscale: scaleOf(false), hoverongaps: false, colorbar: { thickness: 12, outlinewidth: 0 },
    text: layers.map((one) => Array(heads).fill(escaped(one.name))), y: layers.map((_, index) => index),
    hovertemplate: "layer %{text}, head %{x}<br><b>%{z:.3f}</b><extra></extra>",
  }], {
    height: Math.max(170, Math.min(460, 90 + 26 * layers.length)), margin: { l: 46, r: 8, t: 8, b: 42 },
    xaxis: { title: { text: "head" }, showgrid: false, zeroline: false, dtick: heads > 16 ? 4 : 1, range: [-0.5, heads - 0.5] },
    yaxis: { title: { text: "layer", standoff: 8 }, automargin: true, showgrid: false, zeroline: false, tickmode: "array", tickvals: layers.map((_, index) => index).filter((index) => layers.length <= 16 || index % 4 === 0), ticktext: layers.map((one) => escaped(one.name)).filter((_, index) => layers.length <= 16 || index % 4 === 0), range: [layers.length - 0.5, -0.5] },
    shapes: state.head === MEAN || layer().peaks ? [] : [{ type: "rect", x0: state.head - 0.5, x1: state.head + 0.5, y0: layers.indexOf(layer()) - 0.5, y1: layers.indexOf(layer()) + 0.5, line: { color: style("--text"), width: 3 } }],
  });
  drawRanking(measure);
  $("overview-said").textContent = "";
  if (layer().peaks) return;
  const value = state.head === MEAN ? mean(layer().measures.map((found) => found[measure])) : layer().measures[state.head][measure];
  $("overview-said").textContent = `Layer ${layer().name}, ${headName(state.head)}: ${NAMES[measure]} ${value.toFixed(3)}, mean over queries.`;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function drawRanking(measure) {
  const heads = measured().flatMap((one) => one.measures.map((found, head) => ({ one, head, value: found[measure] })));
  const best = heads.sort((a, b) => b.value - a.value).slice(0, RANKED);
  $("ranking").caption.textContent = `Heads with the largest ${NAMES[measure]}`;
  $("ranking").tBodies[0].replaceChildren(...best.map(({ one, head, value }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `layer ${one.name}, head ${head}`;
    button.addEventListener("click", () => choose({ layer: model().layers.indexOf(one), head }));
    return barRow(button, value.toFixed(3), value / (best[0].value || 1), "--positive");
  }));
}

// Small plots side by side: traces with their own axes, and a title above each.
function panels(count, gap, ratio, width) {
  const columns = Math.min(count, Math.max(2, Math.floor(width / (narrow.matches ? 150 : 190))));
  const lines = Math.ceil(count / columns);
  const side = (width - 16 - gap * (columns - 1)) / columns;
  const title = 22;
  const height = lines * (side * ratio + title) + gap * (lines - 1) + 16;
  const inner = height - 16;
  return {
    height,
    at: (index) => {
      const column = index % columns, line = Math.floor(index / columns);
      const left = (column * (side + gap)) / (width - 16);
      const top = 1 - (line * (side * ratio + title + gap) + title) / inner;
      return { x: [left, left + side / (width - 16)], y: [Math.max(0, top - (side * ratio) / inner), top] };
    },
  };
}

function panelLayout(grid, count, titles, ranges, bold) {
  const layout = { height: grid.height, margin: { l: 8, r: 8, t: 8, b: 8 }, annotations: [], shapes: [] };
  for (let index = 0; index < count; index++) {
    const place = grid.at(index), name = index ? String(index + 1) : "";
    const [N, M] = ranges[index];
    const plain = { showgrid: false, zeroline: false, showticklabels: false, ticks: "", fixedrange: true };
    layout[`xaxis${name}`] = { ...plain, domain: place.x, range: [-0.5, M - 0.5], anchor: `y${name}` };
    layout[`yaxis${name}`] = { ...plain, domain: place.y, range: [N - 0.5, -0.5], anchor: `x${name}` };
    layout.annotations.push({ text: titles[index], xref: "paper", yref: "paper", x: place.x[0], y: place.y[1], xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: narrow.matches ? 10.5 : 12 } });
    if (bold === index) layout.shapes.push({ type: "rect", xref: "paper", yref: "paper", x0: place.x[0], x1: place.x[1], y0: place.y[0], y1: place.y[1], line: { color: style("--text"), width: 3 } });
  }
  return layout;
}

function smallMap(one, rows, { signed, end, said, index }) {
  return {
    type: "heatmap", z: cells(one, rows), zmin: signed ? -end : 0, zmax: end, colorscale: scaleOf(signed), showscale: false, hoverongaps: false,
    customdata: rows, hovertemplate: `${said}<br>query %{y}, key %{x}<br><b>%{customdata:.3f}</b><extra></extra>`,
    xaxis: `x${index ? index + 1 : ""}`, yaxis: `y${index ? index + 1 : ""}`,
  };
}

// The maps of this head, and of the same head of each other model.
function drawBeside() {
  const all = meta.models.flatMap((other) => {
    const same = other === model() ? layer() : other.layers.find((each) => each.name === layer().name);
    const one = same ?? other.layers[clamp(state.layer, other.layers.length)];
    const head = state.head === MEAN ? MEAN : clamp(state.head, one.heads);
    const of = meta.models.length > 1 ? `${escaped(short(other.name, 18))}: ` : "";
    const kinds = one.each === 2 ? { first: "first map", second: "second map", difference: "difference" } : { difference: "map" };
    return Object.entries(kinds).map(([map, words]) => ({ one, rows: shownWeights(one, head, map), signed: one.each === 2 && map === "difference", said: of + words }));
  });
  $("beside-part").hidden = all.length < 2;
  if (all.length < 2) return;
  const end = Math.abs(tone(largestOf(all.map(({ rows }) => rows)))) || 1e-9;
  const [N, M] = layer().shape;
  const grid = panels(all.length, 10, Math.max(0.3, Math.min(1.6, N / M)), Math.min($("beside").clientWidth || 360, 330 * all.length));
  const traces = all.map((each, index) => smallMap(each.one, each.rows, { ...each, end, index }));
  draw("beside", traces, panelLayout(grid, all.length, all.map(({ said }) => said), all.map(({ one }) => one.shape), -1));
}

let headsLayout = null; // function of the highlighted head

function drawHeads() {
  const one = layer();
  const all = Array.from({ length: one.heads }, (_, head) => shownWeights(one, head));
  const signed = isSigned();
  const end = Math.abs(tone(largestOf(all))) || 1e-9;
  const [N, M] = one.shape;
  const width = $("heads").clientWidth || 360;
  const grid = panels(one.heads, 10, Math.max(0.3, Math.min(1.6, N / M)), width);
  const traces = all.map((rows, head) => smallMap(one, rows, { signed, end, said: `head ${head}`, index: head }));
  headsLayout = () => panelLayout(grid, one.heads, all.map((_, head) => `head ${head}`), all.map(() => [N, M]), state.head);
  draw("heads", traces, headsLayout());
  $("heads-title").textContent = `Every head of layer ${one.name}`;
}

function markHead() {
  Plotly.relayout($("heads"), { shapes: headsLayout().shapes });
}

function drawMasks() {
  const own = model().masks;
  const [N, M] = own[0].shape;
  const made = (kind) => ({
    kind, words: kind, plain: true, shape: [N, M], used: "not in this model",
    bits: Uint8Array.from({ length: N * M }, (_, cell) => (kind === "global" || (cell % M) <= Math.floor(cell / M) + M - N ? 1 : 0)),
  });
  const missing = ["causal", "global"].filter((kind) => !own.some((mask) => mask.kind === "part" || (mask.kind === kind && mask.plain)));
  const all = [...own, ...missing.map(made)];
  const width = Math.min($("masks").clientWidth || 360, 320 * all.length);
  const grid = panels(all.length, 14, 1, width);
  const traces = all.map((mask, index) => ({
    type: "heatmap", zmin: 0, zmax: 1, showscale: false, colorscale: [[0, style("--hidden")], [1, style("--link")]],
    z: Array.from({ length: mask.shape[0] }, (_, n) => Array.from(mask.bits.subarray(n * mask.shape[1], (n + 1) * mask.shape[1]))),
    customdata: Array.from({ length: mask.shape[0] }, (_, n) => Array.from(mask.bits.subarray(n * mask.shape[1], (n + 1) * mask.shape[1]), (bit) => (bit ? "visible" : "hidden"))),
    hovertemplate: "query %{y}, key %{x}<br><b>%{customdata}</b><extra></extra>", xaxis: `x${index ? index + 1 : ""}`, yaxis: `y${index ? index + 1 : ""}`,
  }));
  draw("masks", traces, { ...panelLayout(grid, all.length, all.map((mask) => `<b>${escaped(mask.words)}</b>: ${escaped(mask.used)}`), all.map((mask) => mask.shape), -1), width });
}

function drawPositions() {
  const found = model().positions;
  $("positions-part").hidden = !found;
  if (!found) return;
  const [N, d] = found.shape;
  draw("positions", [{
    type: "heatmap", z: Array.from({ length: N }, (_, n) => Array.from(found.values.subarray(n * d, (n + 1) * d))), zmin: -1, zmax: 1,
    colorscale: scaleOf(true), colorbar: { thickness: 12, outlinewidth: 0 }, hovertemplate: "position %{y}, dimension %{x}<br><b>%{z:.3f}</b><extra></extra>",
  }], {
    height: 380, margin: { l: 46, r: 8, t: 8, b: 42 },
    xaxis: { title: { text: "dimension" }, showgrid: false, zeroline: false }, yaxis: { title: { text: "position" }, autorange: "reversed", showgrid: false, zeroline: false },
  });
}

function drawCurves() {
  const runs = model().runs;
  const kinds = { loss: "held-out loss", accuracy: "accuracy", train_loss: "training loss" };
  const colours = [style("--link"), `rgb(${style("--positive")})`, style("--soft")];
  const traces = runs.flatMap((run) => Object.keys(kinds).map((kind, index) => {
    const points = run.curve.filter((point) => point[kind] !== null);
    return {
      type: "scatter", mode: points.length > 60 ? "lines" : "lines+markers", name: `${escaped(run.name)}: ${kinds[kind]}`, x: points.map((point) => point.step),
      y: points.map((point) => point[kind]), yaxis: kind === "accuracy" ? "y2" : "y", line: { color: colours[index], dash: kind === "accuracy" ? "dot" : "solid" },
      hovertemplate: `${kinds[kind]}, step %{x}<br><b>%{y:.4f}</b><extra></extra>`,
    };
  })).filter((trace) => trace.x.length);
  $("curves-part").hidden = !traces.length;
  if (!traces.length) return;
  const axis = { gridcolor: style("--line"), zeroline: false };
  draw("curves", traces, {
    height: 380, margin: { l: 56, r: 50, t: 8, b: 42 }, plot_bgcolor: "rgba(0,0,0,0)", showlegend: true, legend: { orientation: "h", y: -0.2 },
    xaxis: { ...axis, title: { text: "optimizer steps" } }, yaxis: { ...axis, title: { text: "loss, nats" } },
    yaxis2: { overlaying: "y", side: "right", range: [0, 1.02], dtick: 0.25, tickmode: "linear", tickformat: ".0%", showgrid: false, title: { text: "accuracy" } },
  });
}
