// What all pictures share: packed numbers, words for numbers, colours, and a canvas that can be
// zoomed, panned, hovered and walked by keyboard.

const data = JSON.parse(document.getElementById('report-data').textContent);

// Varints in base64, as report/html/varint_text.cc writes them.
class VarintText {
  constructor(base64) {
    const text = atob(base64);
    this.bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; ++i) this.bytes[i] = text.charCodeAt(i);
    this.at = 0;
  }
  get done() { return this.at >= this.bytes.length; }
  number() {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }
  signed() {
    const value = this.number();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }
}

// ---------------------------------------------------------------------------------- words

const grouped = (n) => Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');

function fourDigits(x) {
  if (x === 0) return '0';
  if (Math.abs(x) >= 999.95) return grouped(x);
  if (Math.abs(x) < 1e-4) return x.toExponential(3);
  return x.toFixed(Math.max(0, 3 - Math.floor(Math.log10(Math.abs(x)) + 1e-12)));
}

function inUnits(value, units) {
  let unit = 0;
  while (unit + 1 < units.length && Math.abs(value) >= 999.95) {
    value /= 1000;
    ++unit;
  }
  return `${fourDigits(value)} ${units[unit]}`;
}
const bytesText = (x) => inUnits(x, ['B', 'kB', 'MB', 'GB', 'TB', 'PB']);
const timeText = (us) => inUnits(us, ['µs', 'ms', 's']);
const flopsText = (x) => inUnits(x, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP', 'PFLOP', 'EFLOP']);
const percentText = (x) => `${(100 * x).toFixed(1)} %`;
const rangeText = (begin, end) => `${grouped(begin)} … ${grouped(end - 1)}`;
const counted = (n, noun) => `${grouped(n)} ${noun}${n === 1 ? '' : 's'}`;

// ------------------------------------------------------------------------------------ DOM

// element('button', {title: '…', onclick: f}, 'text', child, …): names from the plan are only ever
// text.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function choice(label, names, onchange) {
  const select = element('select', {}, ...names.map((n, i) => element('option', {value: i}, n)));
  select.addEventListener('change', () => onchange(Number(select.value)));
  return element('label', {}, label, select);
}

const figure = (caption, ...children) =>
  element('figure', {}, element('figcaption', {}, caption), ...children);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// '#rrggbb' as the three numbers and as a pixel of ImageData on a little-endian machine.
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const mixed = (a, b, share) => a.map((x, i) => Math.round(x + (b[i] - x) * share));

// One readout for all pictures: beside the pointer, or at the keyboard's cursor.
const readout = {
  box: document.getElementById('readout'),
  show(lines, clientX, clientY) {
    this.box.replaceChildren(element('dl', {}, ...lines.flatMap(
      ([name, text]) => [element('dt', {}, name), element('dd', {}, text)])));
    this.box.hidden = false;
    const {offsetWidth: w, offsetHeight: h} = this.box;
    const left = clientX + 16 + w > innerWidth ? clientX - 14 - w : clientX + 16;
    const top = clientY + 14 + h > innerHeight ? clientY - 10 - h : clientY + 14;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  },
  hide() { this.box.hidden = true; },
};

// ------------------------------------------------------------------------------------ axes

// The part [lo, hi) of [min, max) that a picture shows; never less than `least`.
class Axis {
  constructor(min, max, least) {
    Object.assign(this, {min, max, least, lo: min, hi: max});
  }
  get span() { return this.hi - this.lo; }
  set(lo, hi) {
    const span = Math.min(Math.max(hi - lo, this.least), this.max - this.min);
    const centre = (lo + hi) / 2;
    this.lo = Math.min(Math.max(centre - span / 2, this.min), this.max - span);
    this.hi = this.lo + span;
  }
  zoom(factor, at) { this.set(at - (at - this.lo) / factor, at + (this.hi - at) / factor); }
  pan(by) { this.set(this.lo + by, this.hi + by); }
  reset() { this.set(this.min, this.max); }
}

// Round numbers for the ticks of an axis, at most `most`.
function ticks(lo, hi, most, steps) {
  let step = Math.pow(10, Math.floor(Math.log10((hi - lo) / most)));
  for (const factor of steps || [1, 2, 5, 10]) {
    if ((hi - lo) / (step * factor) <= most) {
      step *= factor;
      break;
    }
  }
  const found = [];
  for (let t = Math.ceil(lo / step) * step; t <= hi; t += step) found.push(t);
  return found;
}

// --------------------------------------------------------------------------------- pictures

const pictures = [];  // all of them, to draw anew when the scheme changes
const kPictureFont = '12px system-ui, "DejaVu Sans", sans-serif';

// A canvas with axes x and y inside `margin`. Subclasses give draw(context), describe(x, y) → lines
// or null in axis units, and may give activate(x, y) (click) and enter(x, y) (double click, Enter).
class Picture {
  constructor(label, x, y, margin) {
    Object.assign(this, {x, y, margin, cursor: null, width: 0, height: 0, frame: 0, linked: []});
    this.canvas = element('canvas', {tabindex: 0, role: 'img', 'aria-label': label});
    this.watch();
    new ResizeObserver(() => requestAnimationFrame(() => this.resize())).observe(this.canvas);
    pictures.push(this);
  }

  // Height for a width, in CSS pixels.
  heightFor(width) { return width; }

  resize() {
    const width = this.canvas.clientWidth;
    if (width === 0 || width === this.width && this.ratio === devicePixelRatio) return;
    this.width = width;
    this.height = Math.round(this.heightFor(width));
    this.ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.redrawNow();
  }

  redraw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.redrawNow());
  }

  redrawNow() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.width) return;
    const context = this.canvas.getContext('2d');
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = kPictureFont;
    context.textBaseline = 'middle';
    this.draw(context);
    if (this.cursor && document.activeElement === this.canvas) this.drawCursor(context);
  }

  // The inner rectangle, where the axes are.
  get inner() {
    const m = this.margin;
    return {left: m.left, top: m.top, width: Math.max(1, this.width - m.left - m.right),
            height: Math.max(1, this.height - m.top - m.bottom)};
  }
  toX(px) { return this.x.lo + (px - this.inner.left) / this.inner.width * this.x.span; }
  toY(px) { return this.y.lo + (px - this.inner.top) / this.inner.height * this.y.span; }
  atX(x) { return this.inner.left + (x - this.x.lo) / this.x.span * this.inner.width; }
  atY(y) { return this.inner.top + (y - this.y.lo) / this.y.span * this.inner.height; }

  // What the axes are of, and in which unit: x at a height of its own, y along the left edge.
  drawAxisNames(context, x, atY, y) {
    const {left, top, width, height} = this.inner;
    context.fillStyle = colour('muted');
    context.textAlign = 'center';
    context.fillText(x, left + width / 2, atY);
    context.save();
    context.translate(7, top + height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(y, 0, 0);
    context.restore();
  }

  drawCursor(context) {
    const {left, top, width, height} = this.inner;
    context.strokeStyle = colour('accent');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(left, this.atY(this.cursor.y));
    context.lineTo(left + width, this.atY(this.cursor.y));
    context.moveTo(this.atX(this.cursor.x), top);
    context.lineTo(this.atX(this.cursor.x), top + height);
    context.stroke();
  }

  // Views of pictures that belong together move together.
  moved() {
    this.redraw();
    for (const other of this.linked) {
      other.x.set(this.x.lo, this.x.hi);
      other.y.set(this.y.lo, this.y.hi);
      other.redraw();
    }
  }
  reset() {
    this.x.reset();
    this.y.reset();
    this.moved();
  }
  zoom(factor, x, y) {
    this.x.zoom(factor, x);
    this.y.zoom(factor, y);
    this.moved();
  }
  zoomMiddle(factor) {
    this.zoom(factor, (this.x.lo + this.x.hi) / 2, (this.y.lo + this.y.hi) / 2);
  }
  panBy(dx, dy) {  // shares of the view
    this.x.pan(dx * this.x.span);
    this.y.pan(dy * this.y.span);
    this.moved();
  }

  tell(clientX, clientY, x, y) {
    const lines = this.describe(x, y);
    if (lines) readout.show(lines, clientX, clientY);
    else readout.hide();
  }

  watch() {
    const canvas = this.canvas;
    let held = null;
    canvas.addEventListener('pointerdown', (event) => {
      held = {x: event.offsetX, y: event.offsetY, moved: false};
      if (event.pointerType === 'mouse') canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => {
      if (held && event.buttons & 1) {
        const dx = event.offsetX - held.x;
        const dy = event.offsetY - held.y;
        held.moved = held.moved || Math.hypot(dx, dy) > 3;
        if (held.moved) {
          this.panBy(-dx / this.inner.width, -dy / this.inner.height);
          Object.assign(held, {x: event.offsetX, y: event.offsetY});
          readout.hide();
        }
        return;
      }
      this.tell(event.clientX, event.clientY, this.toX(event.offsetX), this.toY(event.offsetY));
    });
    canvas.addEventListener('pointerup', (event) => {
      if (held && !held.moved && this.activate) {
        this.activate(this.toX(event.offsetX), this.toY(event.offsetY));
      }
      held = null;
    });
    canvas.addEventListener('pointerleave', () => readout.hide());
    canvas.addEventListener('dblclick', (event) => {
      if (this.enter) this.enter(this.toX(event.offsetX), this.toY(event.offsetY));
    });
    // The wheel scrolls the page until the picture is chosen by a click or Ctrl is held.
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const factor = Math.exp(-(event.deltaY || event.deltaX) * (event.deltaMode ? 0.05 : 0.0016));
      this.zoom(factor, this.toX(event.offsetX), this.toY(event.offsetY), event.shiftKey);
    }, {passive: false});
    canvas.addEventListener('keydown', (event) => this.key(event));
    canvas.addEventListener('blur', () => {
      readout.hide();
      this.redraw();
    });
  }

  // Arrows walk, with Shift they pan; + - 0 zoom; Enter is a double click, Space a click.
  key(event) {
    const arrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    const cursor = this.cursor ||
      {x: (this.x.lo + this.x.hi) / 2, y: (this.y.lo + this.y.hi) / 2};
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in arrows && event.shiftKey) {
      this.panBy(arrows[event.key][0] / 8, arrows[event.key][1] / 8);
    } else if (event.key in arrows) {
      if (this.cursor) this.walk(cursor, ...arrows[event.key]);
    } else if (event.key === '+' || event.key === '=') {
      this.zoom(1.6, cursor.x, cursor.y);
    } else if (event.key === '-') {
      this.zoom(1 / 1.6, cursor.x, cursor.y);
    } else if (event.key === '0') {
      this.reset();
    } else if (event.key === 'Enter' && this.enter) {
      this.enter(cursor.x, cursor.y);
    } else if (event.key === ' ' && this.activate) {
      this.activate(cursor.x, cursor.y);
    } else if (event.key === 'Escape') {
      this.cursor = null;
      readout.hide();
      this.redraw();
      return;
    } else {
      return;
    }
    event.preventDefault();
    this.cursor = {x: Math.min(Math.max(cursor.x, this.x.lo), this.x.hi - 1e-9 * this.x.span),
                   y: Math.min(Math.max(cursor.y, this.y.lo), this.y.hi - 1e-9 * this.y.span)};
    const box = this.canvas.getBoundingClientRect();
    this.tell(box.left + this.atX(this.cursor.x), box.top + this.atY(this.cursor.y),
              this.cursor.x, this.cursor.y);
    this.redraw();
  }

  // Moves a cursor one step; subclasses go from item to item.
  walk(cursor, dx, dy) {
    cursor.x += dx * this.x.span / 64;
    cursor.y += dy * this.y.span / 64;
  }

  // Zoom buttons for mouse and touch.
  tools(...more) {
    const button = (text, title, onclick) =>
      element('button', {type: 'button', title, 'aria-label': title, onclick}, text);
    return element('div', {class: 'tools'},
      button('+', 'Zoom in', () => this.zoomMiddle(1.6)),
      button('−', 'Zoom out', () => this.zoomMiddle(1 / 1.6)),
      button('All', 'Show all', () => this.reset()), ...more, ...saveButtons(this));
  }
}
const zoomHint = 'Drag to move. Click, then turn the wheel to zoom (or Ctrl + wheel). ' +
  'Keys: arrows, Shift + arrows, +, −, 0.';

// --------------------------------------------------------------------------------- devices

// The device that all pictures show apart from the others; -1: none.
const chosen = {
  device: -1,
  listeners: [],
  set(device) {
    this.device = device === this.device ? -1 : device;
    for (const listener of this.listeners) listener();
    for (const picture of pictures) picture.redraw();
  },
};

// Colours of a plan's devices, as triples and as CSS.
class Palette {
  constructor(text) {
    this.css = text.match(/.{6}/g).map((hex) => `#${hex}`);
    this.rgb = this.css.map(channels);
  }
  isLight(device) {
    const [r, g, b] = this.rgb[device];
    return 0.299 * r + 0.587 * g + 0.114 * b > 140;
  }
}

const nodeOf = (plan, device) => Math.floor(device / plan.devices_per_node);
const deviceText = (plan, device) =>
  `${device} (node ${nodeOf(plan, device)})`;
