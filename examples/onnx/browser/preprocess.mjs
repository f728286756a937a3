// The preprocessing of model.json for RGBA pixels, with Pillow's resizing: a canvas resizes in another way.
// Weights are whole multiples of 1 / ONE, as Pillow's are, so that every pixel is the same.

const ONE = 2 ** 22;

const KERNELS = {
  bilinear: {support: 1, weight: x => Math.max(0, 1 - Math.abs(x))},
  bicubic: {support: 2, weight: x => {
    const a = -0.5, d = Math.abs(x);
    return d < 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
  }},
};

function weights(from, to, kernel) {
  const scale = from / to, stretch = Math.max(scale, 1), reach = kernel.support * stretch;
  return Array.from({length: to}, (_, at) => {
    const center = (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach + 0.5)), last = Math.min(from, Math.trunc(center + reach + 0.5));
    const values = [];
    for (let x = first; x < last; x++) values.push(kernel.weight((x - center + 0.5) / stretch));
    const sum = values.reduce((total, one) => total + one, 0);
    return {first, values: values.map(one => Math.trunc(one / sum * ONE + (one < 0 ? -0.5 : 0.5)))};
  });
}

// Resize one axis of (lines, length, channels) bytes to (to, lines, channels): twice gives both axes in order again.
function resized(data, lines, length, to, channels, kernel) {
  const out = new Uint8ClampedArray(to * lines * 3);  // clips, as Pillow does after each axis
  weights(length, to, kernel).forEach(({first, values}, at) => {
    for (let line = 0; line < lines; line++) {
      for (let c = 0; c < 3; c++) {
        let sum = 0;
        for (let k = 0; k < values.length; k++) sum += values[k] * data[(line * length + first + k) * channels + c];
        out[(at * lines + line) * 3 + c] = Math.floor(sum / ONE + 0.5);
      }
    }
  });
  return out;
}

// The first pixel of the middle; half a pixel goes to the even number, as in Python.
function middle(size, crop) {
  const half = (size - crop) / 2;
  return Number.isInteger(half) ? half : 2 * Math.round(half / 2);
}

export function preprocess({data, width, height}, how) {
  let wide = how.width, high = how.height;
  if (how.resize === "shortest" && wide === high) {
    const short = Math.min(width, height);
    [wide, high] = [width, height].map(side => side === short ? how.width : Math.trunc(how.width * side / short));
  } else if (how.resize !== "squash") {
    throw new Error(`this page does not resize by ${how.resize}`);
  }
  const kernel = KERNELS[how.interpolation];
  const columns = resized(data, height, width, wide, 4, kernel);  // (wide, height, 3)
  const rows = resized(columns, wide, height, high, 3, kernel);  // (high, wide, 3)
  const left = middle(wide, how.width), top = middle(high, how.height);
  const out = new Float32Array(3 * how.height * how.width);
  for (let c = 0; c < 3; c++)
    for (let y = 0; y < how.height; y++)
      for (let x = 0; x < how.width; x++)
        out[(c * how.height + y) * how.width + x] =
          (rows[((top + y) * wide + left + x) * 3 + c] / 255 - how.mean[c]) / how.std[c];
  return out;
}
