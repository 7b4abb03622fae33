// Forward and backward on every device over time.

const kWhat = ['attention', 'merge', 'merge', 'launch', 'exposed'];  // of an instruction's kind
const kWhatNames = ['attention', 'reduce', 'copy', 'launch', 'wait'];
const kActivities = ['attention', 'merge', 'launch', 'exposed'];     // of activity bins
const kKinds = ['q', 'kv', 'o', 'do', 'dq', 'dkv'];

// The timeline's data, as src/report/html/timeline_view.h describes it; times in µs from the start of
// the first direction.
class TimelineData {
  constructor(plan) {
    this.plan = plan;
    this.end = 0;
    this.directions = plan.timeline.map((json) => this.readDirection(json));
  }

  readDirection(json) {
    const begin = this.end;
    this.end += json.time_us;
    const direction = {name: json.direction, begin, end: this.end, programs: json.programs};
    if (json.spans !== undefined) direction.spans = this.readSpans(json.spans, begin);
    else direction.activity = this.readBins(json.activity_bins, 4);
    if (json.messages !== undefined) this.readMessages(direction, json.messages, begin);
    else direction.moving = this.readBins(json.message_bins, 2);
    if (json.path !== undefined) direction.path = readPath(json.path, begin);
    if (json.waits !== undefined) readWaits(json.waits, direction.spans);
    return direction;
  }

  readSpans(base64, begin) {
    const packed = new VarintText(base64);
    const devices = [];
    while (!packed.done) {
      const spans = [];
      let ns = 0;
      for (let left = packed.number(); left > 0; --left) {
        ns += packed.signed();
        const start = begin + ns / 1000;
        ns += packed.number();
        spans.push({start, end: begin + ns / 1000, what: packed.number(),
                    numbers: [packed.number(), packed.number(), packed.number()]});
      }
      devices.push(spans);
    }
    return devices;
  }

  readMessages(direction, base64, begin) {
    const packed = new VarintText(base64);
    direction.sends = Array.from({length: this.plan.devices}, () => []);
    direction.receives = Array.from({length: this.plan.devices}, () => []);
    let ns = 0;
    while (!packed.done) {
      const message = {src: packed.number(), dst: packed.number(), bytes: packed.number()};
      ns += packed.signed();
      message.start = begin + ns / 1000;
      message.end = message.start + packed.number() / 1000;
      direction.sends[message.src].push(message);
      direction.receives[message.dst].push(message);
    }
  }

  // Bin b of a device has the `width` shares from (device * bins + b) * width on, in 1/100.
  readBins({bins, runs}, width) {
    const packed = new VarintText(runs);
    const shares = new Uint8Array(this.plan.devices * bins * width);
    let at = 0;
    while (!packed.done) {
      const count = packed.number();
      const values = Array.from({length: width}, () => packed.number());
      for (let i = 0; i < count; ++i, at += width) shares.set(values, at);
    }
    return {bins, width, shares};
  }

  directionAt(time) { return this.directions.find((d) => d.begin <= time && time < d.end); }
}

class Timeline extends Picture {
  constructor(timeline, longest) {
    const {plan} = timeline;
    super(`Timeline of ${plan.strategy}: time right, devices down`,
          new Axis(0, longest, longest / 20000), new Axis(0, plan.devices, Math.min(plan.devices, 4)),
          {left: 80, top: 40, right: 4, bottom: 18});
    this.timeline = timeline;
    this.plan = plan;
    this.palette = new Palette(plan.palette);
  }

  heightFor() {
    return 58 + Math.min(Math.max(this.plan.devices * 21, 90), data.plans.length > 1 ? 480 : 680);
  }

  // Time alone; with Shift, or by its buttons, rows alone.
  zoom(factor, x, y, rows) {
    if (rows) this.y.zoom(factor, y);
    else this.x.zoom(factor, x);
    this.moved();
  }

  get rowHeight() { return this.inner.height / this.y.span; }
  // Lanes of a row as shares of its height: [from, to].
  get lanes() {
    if (this.rowHeight >= 12) return {compute: [0.04, 0.52], send: [0.57, 0.74], receive: [0.76, 0.93]};
    return this.rowHeight >= 5 ? {compute: [0, 0.86]} : {compute: [0, 1]};
  }

  draw(context) {
    const {left, top, width, height} = this.inner;
    this.colours = Object.fromEntries(['attention', 'merge', 'launch', 'exposed', 'idle', 'send',
      'receive', 'critical', 'line', 'strong-line', 'muted', 'text', 'empty'].map((n) => [n, colour(n)]));
    context.fillStyle = this.colours.empty;
    context.fillRect(left, top, width, height);
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    const first = Math.floor(this.y.lo);
    const last = Math.min(Math.ceil(this.y.hi), this.plan.devices);
    for (const direction of this.timeline.directions) {
      if (direction.end < this.x.lo || direction.begin > this.x.hi) continue;
      if (direction.activity && this.rowHeight < 4) {
        this.drawThinBins(context, direction);
        continue;
      }
      for (let device = first; device < last; ++device) this.drawRow(context, direction, device);
    }
    this.drawLines(context, first, last);
    for (const direction of this.timeline.directions) {
      if (criticalPath.shown && direction.path) drawPath(context, this, direction);
    }
    context.restore();
    this.drawLabels(context, first, last);
    this.drawPrograms(context);
    this.drawAxisNames(context, 'time', this.height - 8, 'device');
  }

  drawRow(context, direction, device) {
    // On whole pixels: rows may be thinner than two of them.
    const y = Math.round(this.atY(device));
    const h = Math.max(1, Math.round(this.atY(device + 1)) - y);
    const {compute, send, receive} = this.lanes;
    context.globalAlpha = chosen.device >= 0 && chosen.device !== device ? 0.3 : 1;
    const box = (lane, x0, x1, from, to) => context.fillRect(
      x0, y + (lane[0] + (lane[1] - lane[0]) * from) * h, Math.max(x1 - x0, 0.7),
      (lane[1] - lane[0]) * (to - from) * h);
    if (direction.spans) {
      for (const span of direction.spans[device]) {
        if (span.end < this.x.lo) continue;
        if (span.start > this.x.hi) break;
        context.fillStyle = this.colours[kWhat[span.what]];
        box(compute, this.atX(span.start), this.atX(span.end), 0, 1);
      }
    } else {
      kActivities.forEach((name, i) => {  // stacked, attention at the bottom
        context.fillStyle = this.colours[name];
        this.eachBin(direction, device, direction.activity, (x0, x1, shares) => {
          if (!shares[i]) return;
          let below = 0;
          for (let j = 0; j < i; ++j) below += shares[j] / 100;
          box(compute, x0, x1, 1 - Math.min(1, below + shares[i] / 100), 1 - below);
        });
      });
    }
    if (send) this.drawMessages(context, direction, device, box, send, receive);
    context.globalAlpha = 1;
  }

  // Rows of few pixels: every bin in the mixture of its activities' colours.
  drawThinBins(context, direction) {
    const {left, top, width, height} = this.inner;
    const x0 = Math.max(this.atX(direction.begin), left);
    const x1 = Math.min(this.atX(direction.end), left + width);
    const columns = Math.round((x1 - x0) * this.ratio);
    if (columns < 1) return;
    const {bins} = direction.activity;
    const colours = this.mixtures(direction.activity);
    const image = context.createImageData(columns, Math.round(height * this.ratio));
    const pixels = new Uint32Array(image.data.buffer);
    const binOf = Array.from({length: columns}, (_, x) => {
      const share = (this.toX(x0 + (x + 0.5) / this.ratio) - direction.begin) / (direction.end - direction.begin);
      return Math.min(Math.max(Math.floor(share * bins), 0), bins - 1);
    });
    for (let y = 0; y < image.height; ++y) {
      const device = Math.min(Math.floor(this.toY(top + (y + 0.5) / this.ratio)), this.plan.devices - 1);
      for (let x = 0; x < columns; ++x) pixels[y * columns + x] = colours[device * bins + binOf[x]];
    }
    context.putImageData(image, Math.round(x0 * this.ratio), Math.round(top * this.ratio));
  }

  mixtures({bins, width, shares}) {
    const back = channels(this.colours.empty);
    const parts = kActivities.map((name) => channels(this.colours[name]));
    const mixtures = new Uint32Array(this.plan.devices * bins);
    for (let i = 0; i < mixtures.length; ++i) {
      const faint = chosen.device >= 0 && chosen.device !== Math.floor(i / bins) ? 0.3 : 1;
      const sum = [...back];
      for (let j = 0; j < width; ++j) {
        const share = faint * shares[i * width + j] / 100;
        for (let c = 0; share && c < 3; ++c) sum[c] += share * (parts[j][c] - back[c]);
      }
      mixtures[i] = pixel(sum.map(Math.round));
    }
    return mixtures;
  }

  drawMessages(context, direction, device, box, send, receive) {
    const full = context.globalAlpha;
    for (const [lane, name, messages, i] of [[send, 'send', direction.sends, 0],
                                             [receive, 'receive', direction.receives, 1]]) {
      context.fillStyle = this.colours[name];
      if (messages) {
        context.globalAlpha = 0.6 * full;  // messages at the same time lie on each other
        for (const m of messages[device]) {
          if (m.end >= this.x.lo && m.start <= this.x.hi) box(lane, this.atX(m.start), this.atX(m.end), 0, 1);
        }
        context.globalAlpha = full;
      } else {
        this.eachBin(direction, device, direction.moving,
                     (x0, x1, shares) => { if (shares[i]) box(lane, x0, x1, 1 - shares[i] / 100, 1); });
      }
    }
  }

  eachBin(direction, device, {bins, width, shares}, visit) {
    const step = (direction.end - direction.begin) / bins;
    const first = Math.max(0, Math.floor((this.x.lo - direction.begin) / step));
    const last = Math.min(bins, Math.ceil((this.x.hi - direction.begin) / step));
    const snapped = (time) => Math.round(this.atX(time) * this.ratio) / this.ratio;
    for (let b = first; b < last; ++b) {
      const at = (device * bins + b) * width;
      const x0 = direction.begin + b * step;
      visit(snapped(x0), snapped(x0 + step), shares.subarray(at, at + width));
    }
  }

  // The shares of the bin at a time.
  sharesAt(direction, device, {bins, width, shares}, time) {
    const share = (time - direction.begin) / (direction.end - direction.begin);
    const at = (device * bins + Math.min(bins - 1, Math.floor(share * bins))) * width;
    return shares.subarray(at, at + width);
  }

  // Between nodes, and between devices where rows are tall.
  drawLines(context, first, last) {
    const {left, width} = this.inner;
    for (let device = first; device <= last; ++device) {
      const isNode = device % this.plan.devices_per_node === 0;
      if (!isNode && this.rowHeight < 12) continue;
      if (isNode && this.rowHeight * this.plan.devices_per_node < 24) continue;
      context.fillStyle = isNode ? this.colours['strong-line'] : this.colours.line;
      context.fillRect(left, Math.round(this.atY(device)) - (isNode ? 0.5 : 0), width, isNode ? 1 : 0.5);
    }
  }

  drawLabels(context, first, last) {
    const {left, top, height} = this.inner;
    context.textAlign = 'right';
    const every = this.rowHeight >= 11 ? 1 : this.plan.devices_per_node *
      Math.max(1, Math.ceil(11 / (this.rowHeight * this.plan.devices_per_node)));
    for (let device = first; device < last; ++device) {
      const y = Math.max(this.atY(device), top);
      const h = Math.min(this.atY(device + 1), top + height) - y;
      context.fillStyle = this.palette.css[device];
      context.fillRect(left - 8, y, 6, h);
      if (device % every || h < Math.min(10, 0.6 * this.rowHeight)) continue;
      context.fillStyle = this.colours.muted;
      const middle = every === 1 ? y + h / 2 : y + 6;
      const text = every === 1 ? `${device}` : `node ${nodeOf(this.plan, device)}`;
      context.fillText(text, left - 12, middle);
    }
  }

  // Time ticks, and names of directions and programs above them.
  drawPrograms(context) {
    const {left, top, width} = this.inner;
    context.textAlign = 'center';
    context.fillStyle = this.colours.muted;
    const step = ticks(this.x.lo, this.x.hi, width / 100);
    const unit = this.x.hi >= 1000 ? [1000, 'ms'] : [1, 'µs'];
    const digits = step.length > 1 ? Math.max(0, -Math.floor(Math.log10((step[1] - step[0]) / unit[0]) + 1e-9)) : 0;
    for (const t of step) {
      const text = `${(t / unit[0]).toFixed(digits)} ${unit[1]}`;
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(this.atX(t), left + half), left + width - half), top - 10);
      context.fillRect(this.atX(t), top - 3, 1, 3);
    }
    for (const direction of this.timeline.directions) {
      for (const program of direction.programs) {
        const x0 = Math.max(left, this.atX(direction.begin + program.start_us));
        const x1 = Math.min(left + width, this.atX(direction.begin + program.end_us));
        if (x1 - x0 < 2) continue;
        context.fillStyle = this.colours['strong-line'];
        context.fillRect(x0, 2, 1, 17);
        context.fillRect(x0, 2, x1 - x0 - 1, 1);
        const text = `${direction.name}: ${program.name}`;
        context.fillStyle = this.colours.text;
        if (context.measureText(text).width < x1 - x0 - 8) context.fillText(text, (x0 + x1) / 2, 11);
      }
    }
  }

  describe(time, y) {
    const device = Math.floor(y);
    const direction = this.timeline.directionAt(time);
    if (!direction || device < 0 || device >= this.plan.devices || time < this.x.lo) return null;
    const lines = [['device', deviceText(this.plan, device)],
                   [direction.name, `at ${timeText(time - direction.begin)} of ` +
                     timeText(direction.end - direction.begin)]];
    if (direction.spans) this.describeSpan(lines, direction.spans[device], direction, time);
    else this.describeBin(lines, direction, device, time);
    describePath(lines, direction, time);
    if (direction.sends) {
      this.describeMessages(lines, 'sends', direction.sends[device], 'dst', 'to', time);
      this.describeMessages(lines, 'receives', direction.receives[device], 'src', 'from', time);
    } else {
      const shares = this.sharesAt(direction, device, direction.moving, time);
      lines.push(['sends', `${shares[0]} % of the time`], ['receives', `${shares[1]} % of the time`]);
    }
    return lines;
  }

  describeSpan(lines, spans, direction, time) {
    const span = spans.find((s) => s.start <= time && time < s.end);
    if (!span) {
      const done = spans.every((s) => s.end <= time);
      lines.push(['idle', done ? 'done, waits for the others' : '']);
      return;
    }
    const length = span.end - span.start;
    lines.push([kWhatNames[span.what], `${timeText(length)}, from ${timeText(span.start - direction.begin)}`]);
    const [a, b, c] = span.numbers;
    if (span.what === 0) {
      lines.push(['work', `${counted(a, 'tile')}, ${grouped(b)} pairs`],
                 ['speed', `${fourDigits(c / length)} TFLOP/s`]);
    } else if (span.what <= 2) {
      lines.push(['unit', `${kKinds[c]} of block ${a}, head group ${b}`]);
    } else {
      if (span.wait) describeWait(lines, this.plan, direction, span);
      lines.push(['launch', span.what === 3 ? `${a}: ${b} units sent, ${c} received` : `${a}`]);
    }
  }

  describeBin(lines, direction, device, time) {
    lines.push(['within', timeText((direction.end - direction.begin) / direction.activity.bins)]);
    const shares = this.sharesAt(direction, device, direction.activity, time);
    kActivities.forEach((name, i) => { if (shares[i]) lines.push([name, `${shares[i]} %`]); });
    const idle = 100 - shares.reduce((a, b) => a + b, 0);
    if (idle > 2) lines.push(['idle', `${idle} %`]);
  }

  describeMessages(lines, name, messages, peer, word, time) {
    const now = messages.filter((m) => m.start <= time && time < m.end);
    const shown = now.slice(0, 4).map((m) => `${bytesText(m.bytes)} ${word} ${m[peer]}`);
    if (now.length > 4) shown.push(`${now.length - 4} more`);
    if (now.length) lines.push([name, shown.join(', ')]);
  }

  activate(time, y) {
    if (y >= 0 && y < this.plan.devices) chosen.set(Math.floor(y));
  }

  walk(cursor, dx, dy) {
    cursor.y = Math.min(Math.max(Math.floor(cursor.y) + dy, 0), this.plan.devices - 1) + 0.5;
    if (!dx) return;
    const direction = this.timeline.directionAt(cursor.x) || this.timeline.directions.at(-1);
    if (direction.spans) {  // to the middle of the next span
      const spans = this.timeline.directions.flatMap((d) => d.spans ? d.spans[Math.floor(cursor.y)] : []);
      const next = dx > 0 ? spans.find((s) => s.start > cursor.x)
                          : spans.filter((s) => s.end <= cursor.x).at(-1);
      if (next) cursor.x = (next.start + next.end) / 2;
    } else {
      cursor.x += dx * (direction.end - direction.begin) / direction.activity.bins;
    }
    if (cursor.x < this.x.lo || cursor.x >= this.x.hi) {
      this.x.set(cursor.x - this.x.span / 2, cursor.x + this.x.span / 2);
      this.moved();
    }
  }
}

function timelineLegend() {
  const entry = (name, text) => {
    const swatch = element('i', {});
    swatch.style.background = `var(--${name})`;
    return element('span', {}, swatch, text);
  };
  const path = element('span', {}, element('i', {class: 'outlined'}), 'on the critical path');
  return element('div', {class: 'legend'}, entry('attention', 'attention'),
    entry('merge', 'merging and copying'), entry('launch', 'launching'),
    entry('exposed', 'waiting for transfers'), entry('send', 'sending'), entry('receive', 'receiving'), path);
}
