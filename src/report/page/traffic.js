// Bytes from each device to each.

class TrafficMatrix extends Picture {
  constructor(plan) {
    const {side} = plan.traffic;
    super(`Traffic of ${plan.strategy}: senders down, receivers right`,
          new Axis(0, side, Math.min(side, 4)), new Axis(0, side, Math.min(side, 4)),
          {left: 56, top: 34, right: 4, bottom: 4});
    this.plan = plan;
    this.side = side;
    this.bytes = {forward: this.read('forward'), backward: this.read('backward')};
    this.show('forward');
  }

  // Bytes by sender and receiver; null when the plan lacks the direction.
  read(direction) {
    const json = this.plan.traffic[direction];
    if (!json) return null;
    const packed = new VarintText(json.entries);
    const bytes = new Float64Array(this.side * this.side);
    for (let at = 0; !packed.done;) {
      const units = packed.number();
      if (units === 0) at += packed.number();
      else bytes[at++] = units * json.unit_bytes;
    }
    return bytes;
  }

  get directions() { return ['forward', 'backward'].filter((d) => this.bytes[d]); }

  show(direction) {
    this.direction = direction;
    const parts = this.directions.filter((d) => direction === 'both' || d === direction);
    this.shown = new Float64Array(this.side * this.side);
    for (const part of parts) this.bytes[part].forEach((b, i) => { this.shown[i] += b; });
    const some = this.shown.filter((b) => b > 0);
    this.most = some.reduce((a, b) => Math.max(a, b), 0);
    this.least = some.reduce((a, b) => Math.min(a, b), this.most);
    this.redraw();
  }

  heightFor(width) { return width - this.margin.left - this.margin.right + this.margin.top + this.margin.bottom; }

  // Shares of the colour scale: logarithmic, so that traffic inside and between nodes shows.
  level(bytes) {
    if (this.most === this.least) return 1;
    return Math.log(bytes / this.least) / Math.log(this.most / this.least);
  }

  draw(context) {
    const {left, top, width, height} = this.inner;
    const low = channels(colour('low'));
    const high = channels(colour('high'));
    const empty = pixel(channels(colour('empty')));
    const scale = Array.from({length: 65}, (_, i) => pixel(mixed(low, high, 0.12 + 0.88 * i / 64)));
    const image = context.createImageData(Math.round(width * this.ratio), Math.round(height * this.ratio));
    const pixels = new Uint32Array(image.data.buffer);
    const cellPixels = image.width / this.x.span;
    const at = (i, size, axis) => axis.lo + (i + 0.5) / size * axis.span;
    for (let py = 0; py < image.height; ++py) {
      const y = at(py, image.height, this.y);
      for (let px = 0; px < image.width; ++px) {
        const x = at(px, image.width, this.x);
        const bytes = this.shown[Math.floor(y) * this.side + Math.floor(x)];
        const inGap = cellPixels > 9 && (x % 1 < 1.01 / cellPixels || y % 1 < 1.01 / cellPixels);
        pixels[py * image.width + px] =
          bytes > 0 && !inGap ? scale[Math.round(64 * this.level(bytes))] : empty;
      }
    }
    context.putImageData(image, Math.round(left * this.ratio), Math.round(top * this.ratio));
    this.drawNodes(context);
    this.drawTicks(context);
    this.drawChosen(context);
  }

  get rowsPerNode() { return this.plan.devices_per_node / this.plan.traffic.merged; }

  drawNodes(context) {
    const {left, top, width, height} = this.inner;
    context.fillStyle = colour('strong-line');
    const step = this.rowsPerNode;
    const nodePixels = step * width / this.x.span;
    if (step < 1 || nodePixels < 4) return;
    context.globalAlpha = Math.min(Math.max((nodePixels - 4) / 24, 0.15), 1);
    for (let i = 0; i <= this.side; i += step) {
      if (i >= this.x.lo && i <= this.x.hi) context.fillRect(Math.round(this.atX(i)) - 0.5, top, 1, height);
      if (i >= this.y.lo && i <= this.y.hi) context.fillRect(left, Math.round(this.atY(i)) - 0.5, width, 1);
    }
    context.globalAlpha = 1;
  }

  drawTicks(context) {
    const {left, top, width, height} = this.inner;
    const {merged} = this.plan.traffic;
    context.fillStyle = colour('muted');
    const cell = width / this.x.span;
    const step = cell >= 22 ? 1 : Math.max(1, this.rowsPerNode) *
      Math.max(1, Math.ceil(30 / (cell * Math.max(1, this.rowsPerNode))));
    for (let i = Math.ceil(this.x.lo / step) * step; i < this.x.hi; i += step) {
      context.textAlign = cell >= 22 ? 'center' : 'left';
      context.fillText(`${i * merged}`, this.atX(i) + (cell >= 22 ? cell / 2 : 1), top - 9);
    }
    context.textAlign = 'right';
    for (let i = Math.ceil(this.y.lo / step) * step; i < this.y.hi; i += step) {
      const y = this.atY(i) + (cell >= 22 ? cell / 2 : 7);
      if (y < top + height - 4) context.fillText(`${i * merged}`, left - 5, y);
    }
    this.drawAxisNames(context, 'receiving device', 8, 'sending device');
  }

  drawChosen(context) {
    if (chosen.device < 0) return;
    const {left, top, width, height} = this.inner;
    const row = Math.floor(chosen.device / this.plan.traffic.merged);
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.strokeStyle = colour('accent');
    context.lineWidth = 1.5;
    context.strokeRect(left - 2, this.atY(row), width + 4, this.atY(row + 1) - this.atY(row));
    context.strokeRect(this.atX(row), top - 2, this.atX(row + 1) - this.atX(row), height + 4);
    context.restore();
  }

  name(row) {
    const {merged} = this.plan.traffic;
    if (merged === 1) return deviceText(this.plan, row);
    return `${row * merged} … ${Math.min((row + 1) * merged, this.plan.devices) - 1}`;
  }

  describe(x, y) {
    const sender = Math.floor(y);
    const receiver = Math.floor(x);
    if (x < this.x.lo || x >= this.x.hi || y < this.y.lo || y >= this.y.hi) return null;
    const at = sender * this.side + receiver;
    const lines = [['from', this.name(sender)], ['to', this.name(receiver)]];
    for (const direction of this.directions) {
      lines.push([direction, `${bytesText(this.bytes[direction][at])}` +
        (this.bytes[direction][at] >= 1000 ? ` (${grouped(this.bytes[direction][at])} B)` : '')]);
    }
    return lines;
  }

  activate(x, y) {
    if (x >= this.x.lo && y >= this.y.lo) chosen.set(Math.floor(y) * this.plan.traffic.merged);
  }

  walk(cursor, dx, dy) {
    const step = (at, by) => Math.min(Math.max(Math.floor(at) + by, 0), this.side - 1) + 0.5;
    cursor.x = step(cursor.x, dx);
    cursor.y = step(cursor.y, dy);
  }

  // From the palest to the darkest cell.
  legend() {
    const ramp = element('i', {});
    ramp.style.cssText = 'width: 120px; background: linear-gradient(to right, ' +
      'color-mix(in srgb, var(--low) 88%, var(--high)), var(--high)); margin: 0 6px;';
    const least = element('span', {});
    const most = element('span', {});
    const update = () => {
      least.textContent = this.most > 0 ? bytesText(this.least) : 'nothing moves';
      most.textContent = this.most > 0 ? `${bytesText(this.most)}, logarithmic` : '';
    };
    update();
    this.updateLegend = update;
    return element('div', {class: 'legend'}, element('span', {}, least, ramp, most));
  }
}
