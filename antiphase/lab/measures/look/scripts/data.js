// The data of the page and what follows from it: unpacks the arrays that are embedded as gzip in base85, forms the
// weights of a map, and measures a head. The difference of two maps is computed here.

const STEPS = 255;
const MEAN = -1; // instead of a head's number: the mean over all heads of a layer
const $ = (id) => document.getElementById(id);
const meta = JSON.parse($("meta").textContent);
const narrow = matchMedia("(max-width: 600px)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse), (max-width: 600px)"); // touch screens: no zoom by dragging, no toolbar

// base85 with the digits of RFC 1924, except a comma for <
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const digit = new Uint8Array(128);
for (let i = 0; i < 85; i++) digit[DIGITS.charCodeAt(i)] = i;

function bytesOf(text) {
  const lacking = (5 - (text.length % 5)) % 5;
  const whole = text + "~".repeat(lacking);
  const bytes = new DataView(new ArrayBuffer((whole.length / 5) * 4));
  for (let at = 0; at < whole.length; at += 5) {
    let number = 0;
    for (let i = 0; i < 5; i++) number = number * 85 + digit[whole.charCodeAt(at + i)];
    bytes.setUint32((at / 5) * 4, number);
  }
  return bytes.buffer.slice(0, bytes.byteLength - lacking);
}

async function unpack(id) {
  const bytes = bytesOf($(id).textContent);
  $(id).remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await unpack("plotly"));
  document.head.append(script);
}

async function loadModel(model) {
  for (const mask of model.masks) mask.bits = new Uint8Array(await unpack(mask.blob));
  for (const layer of model.layers) {
    const buffer = await unpack(layer.blob);
    const [N, M] = model.masks[layer.mask].shape;
    const rows = layer.heads * layer.each * N;
    layer.scales = new Float32Array(buffer, 0, rows);
    layer.lambda = layer.each === 2 ? new Float32Array(buffer, 4 * rows, layer.heads * N) : null;
    layer.codes = new Uint8Array(buffer, 4 * (rows + (layer.lambda ? layer.lambda.length : 0)));
    layer.shape = [N, M];
    layer.bits = model.masks[layer.mask].bits;
    layer.count = layer.bits.reduce((sum, bit) => sum + bit, 0); // visible cells of a map
  }
  if (model.positions) model.positions.values = new Float32Array(await unpack(model.positions.blob));
}

// One softmax map as N rows of M weights; hidden cells stay 0.
function softmaxMap(layer, head, which) {
  const [N, M] = layer.shape;
  const index = head * layer.each + which;
  let at = index * layer.count;
  return Array.from({ length: N }, (_, n) => {
    const row = new Float32Array(M);
    const scale = layer.scales[index * N + n];
    for (let m = 0; m < M; m++) {
      if (layer.bits[n * M + m]) {
        const share = layer.codes[at++] / STEPS;
        row[m] = scale * share * share;
      }
    }
    return row;
  });
}

function weightsOf(layer, head, map) {
  if (head === MEAN) {
    const all = Array.from({ length: layer.heads }, (_, one) => weightsOf(layer, one, map));
    return all[0].map((row, n) => row.map((_, m) => all.reduce((sum, rows) => sum + rows[n][m], 0) / all.length));
  }
  if (layer.each === 1 || map === "first") return softmaxMap(layer, head, 0);
  const second = softmaxMap(layer, head, 1);
  if (map === "second") return second;
  return softmaxMap(layer, head, 0).map((row, n) => {
    const lambda = layer.lambda[head * layer.shape[0] + n];
    return row.map((weight, m) => weight - lambda * second[n][m]);
  });
}

// For each query the keys behind an earlier occurrence of its token, where induction heads look; null without any.
function followers(tokens) {
  const found = tokens.map((token, n) => tokens.flatMap((other, m) => (m + 1 < n && other.id === token.id ? [m + 1] : [])));
  return found.some((keys) => keys.length) ? found : null;
}

// Means over queries of the weights that multiply the values, as shares of the sum of |weight|. Those of induction are
// over the queries whose token has occurred before.
function measures(layer, head, tokens, segment) {
  const rows = weightsOf(layer, head, "difference");
  const [N, M] = layer.shape;
  const isSelf = layer.queries === layer.keys;
  const found = { first: 0, entropy: 0, distance: 0, negative: 0, previous: 0 };
  const after = isSelf ? (tokens.followers ??= followers(tokens)) : null;
  let induction = 0;
  rows.forEach((row, n) => {
    let total = 0;
    for (const weight of row) total += Math.abs(weight);
    if (!total) return;
    row.forEach((weight, m) => {
      const share = Math.abs(weight) / total;
      if (!share) return;
      found.entropy -= share * Math.log(share);
      found.distance += segment * share * Math.abs(n + M - N - m);
      if (weight < 0) found.negative += share;
    });
    found.first += Math.abs(row[0]) / total;
    if (isSelf && n) found.previous += Math.abs(row[n - 1]) / total;
    if (after) for (const m of after[n]) induction += Math.abs(row[m]) / total;
  });
  for (const name in found) found[name] /= name === "previous" ? Math.max(1, N - 1) : N;
  return { ...found, induction: after && induction / after.filter((keys) => keys.length).length };
}
