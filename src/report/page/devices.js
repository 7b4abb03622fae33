// Every device's share of work, bytes, memory and time as bars.

// One chart: bars of stacked series, by device. Series: {name, values, colour: CSS name or null for
// the device's own, down: below the axis}. `quantity` is what the bars show.
class DeviceChart extends Picture {
  constructor(plan, title, quantity, series, text, most) {
    super(`${title} of every device of ${plan.strategy}`, new Axis(0, plan.devices, Math.min(plan.devices, 8)),
          new Axis(0, 1, 1), {left: 100, top: 8, right: 4, bottom: 32});
    Object.assign(this, {plan, quantity, series, text, most});
    this.palette = new Palette(plan.palette);
    this.hasDown = series.some((s) => s.down);
  }

  heightFor() { return this.hasDown ? 184 : 134; }
  zoom(factor, x) {
    this.x.zoom(factor, x);
    this.moved();
  }

  draw(context) {
    const {left, top, width, height} = this.inner;
    const zero = this.hasDown ? top + height / 2 : top + height;
    const tall = this.hasDown ? height / 2 : height;
    const most = this.most || 1;
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    const barWidth = width / this.x.span;
    const gap = barWidth > 5 ? Math.min(3, barWidth * 0.15) : 0;
    for (let d = Math.floor(this.x.lo); d < Math.min(Math.ceil(this.x.hi), this.plan.devices); ++d) {
      const x0 = gap ? this.atX(d) + gap / 2 : Math.round(this.atX(d));
      const x1 = gap ? x0 + barWidth - gap : Math.max(Math.round(this.atX(d + 1)), x0 + 1);
      let up = 0;
      let down = 0;
      context.globalAlpha = chosen.device >= 0 && chosen.device !== d ? 0.3 : 1;
      for (const s of this.series) {
        const size = s.values[d] / most * tall;
        context.fillStyle = s.colour ? colour(s.colour) : this.palette.css[d];
        if (s.faint) context.globalAlpha *= 0.5;
        const y = s.down ? zero + down : zero - up - size;
        context.fillRect(x0, y, x1 - x0, size);
        if (s.faint) context.globalAlpha *= 2;
        if (s.down) down += size;
        else up += size;
      }
    }
    context.globalAlpha = 1;
    context.restore();
    this.drawAxes(context, zero, tall);
  }

  drawAxes(context, zero, tall) {
    const {left, top, width, height} = this.inner;
    context.fillStyle = colour('strong-line');
    context.fillRect(left, zero - 0.5, width, 1);
    for (let d = 0; d <= this.plan.devices; d += this.plan.devices_per_node) {
      if (d < this.x.lo || d > this.x.hi) continue;
      context.fillRect(this.atX(d), zero - 2, 1, 5);
    }
    context.fillStyle = colour('muted');
    context.textAlign = 'right';
    context.fillText(this.text(this.most), left - 6, zero - tall + 6);
    if (this.hasDown) {
      context.fillText('sent', left - 6, zero - tall / 2 + 8);
      context.fillText('received', left - 6, zero + tall / 2);
      context.fillText(this.text(this.most), left - 6, zero + tall - 5);
    } else {
      context.fillText('0', left - 6, zero - 5);
    }
    context.textAlign = 'left';
    const node = this.plan.devices_per_node * width / this.x.span;
    const every = Math.max(1, Math.ceil(46 / node));
    for (let n = 0; n * this.plan.devices_per_node < this.plan.devices; n += every) {
      const x = this.atX(n * this.plan.devices_per_node);
      const name = node * every > 52 ? `node ${n}` : `${n}`;
      if (x >= left - 1 && x + 5 + context.measureText(name).width < left + width) {
        context.fillText(name, x + 3, top + height + 10);
      }
    }
    this.drawAxisNames(context, 'device', this.height - 8, this.quantity);
  }

  describe(x) {
    const device = Math.floor(x);
    if (x < this.x.lo || device < 0 || device >= this.plan.devices) return null;
    const lines = [['device', deviceText(this.plan, device)]];
    for (const s of this.series) lines.push([s.name, this.text(s.values[device])]);
    return lines;
  }

  activate(x) {
    if (x >= this.x.lo && x < this.plan.devices) chosen.set(Math.floor(x));
  }

  walk(cursor, dx) {
    cursor.x = Math.min(Math.max(Math.floor(cursor.x) + dx, 0), this.plan.devices - 1) + 0.5;
  }
}

const subtract = (a, b) => a.map((x, i) => x - b[i]);

// What the charts of a direction show; `of` is a plan's device_data of it.
const kCharts = [
  {title: 'Attention work', quantity: 'work', text: flopsText, series: (of) => [{name: 'work', values: of.flops}]},
  {title: 'Bytes sent and received: between nodes solid, inside a node pale', quantity: 'bytes', text: bytesText,
   series: (of) => [
     {name: 'sent between nodes', values: of.inter_sent_bytes, colour: 'send'},
     {name: 'sent inside', values: subtract(of.sent_bytes, of.inter_sent_bytes), colour: 'send', faint: true},
     {name: 'received between nodes', values: of.inter_received_bytes, colour: 'receive', down: true},
     {name: 'received inside', values: subtract(of.received_bytes, of.inter_received_bytes),
      colour: 'receive', faint: true, down: true}]},
  {title: 'Peak memory of the plan', quantity: 'memory', text: bytesText,
   series: (of) => [{name: 'memory', values: of.memory_bytes}]},
  {title: 'Time: attention, merging, launching, waiting for transfers, idle', quantity: 'time', text: timeText,
   series: (of) => [...kActivities, 'idle'].map(
     (name) => ({name, values: of[`${name}_us`], colour: name}))},
];

// The tallest bar of all plans: one scale for all.
function tallest(seriesOf) {
  let most = 0;
  for (const plan of data.plans) {
    const series = seriesOf(plan.device_data);
    for (let d = 0; d < plan.devices; ++d) {
      const sum = (down) => series.reduce((s, x) => s + (!!x.down === down ? x.values[d] : 0), 0);
      most = Math.max(most, sum(false), sum(true));
    }
  }
  return most;
}

function deviceCharts(plan) {
  const charts = element('div', {class: 'charts'});
  const directions = ['forward', 'backward'].filter((d) => plan.device_data[d]);
  const add = (title, quantity, seriesOf, text) => {
    const chart =
      new DeviceChart(plan, title, quantity, seriesOf(plan.device_data), text, tallest(seriesOf));
    charts.append(figure(title, chart.canvas));
  };
  for (const {title, quantity, text, series} of kCharts) {
    for (const direction of directions) {
      add(`${direction}: ${title}`, quantity, (all) => all[direction] ? series(all[direction]) : [], text);
    }
  }
  add('Tokens owned', 'tokens', (all) => [{name: 'tokens', values: all.owned_tokens}],
      (n) => grouped(n));
  return charts;
}
