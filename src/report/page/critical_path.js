// The critical path on the timeline, and what every wait waits for.

const kSteps = ['attention', 'merge', 'launch', 'latency', 'transfer'];
const kMessageStep = 3;  // from here on steps are about a message
const kDoing = {attention: 'computing attention', merge: 'merging', launch: 'launching',
                exposed: 'waiting itself'};

const criticalPath = {
  shown: false,
  set(shown) {
    this.shown = shown;
    for (const picture of pictures) picture.redraw();
  },
};

// Packed as src/report/html/timeline_why.h describes it.
function readPath(base64, begin) {
  const packed = new VarintText(base64);
  const steps = [];
  let ns = 0;
  while (!packed.done) {
    const start = begin + ns / 1000;
    ns += packed.number();
    const step = {start, end: begin + ns / 1000, kind: packed.number(), device: packed.number()};
    if (step.kind >= kMessageStep) step.sender = packed.number();
    steps.push(step);
  }
  return steps;
}

// Gives every waiting span its reason.
function readWaits(base64, devices) {
  const packed = new VarintText(base64);
  for (const spans of devices) {
    for (const span of spans) {
      if (kWhat[span.what] !== 'exposed') continue;
      const [peer, sends, bytes, kinds, portKind, port, sharing] =
        Array.from({length: 7}, () => packed.number());
      const [away, queued, latency] = Array.from({length: 3}, () => packed.number() / 1000);
      const root = {kind: packed.number(), device: packed.number(), sender: packed.number() - 1,
                    time: packed.number() / 1000};
      span.wait = {peer, sends, bytes, kinds, portKind, port, sharing, away, queued, latency, root};
    }
  }
}

function portText(plan, kind, index) {
  const way = kind % 2 ? 'in' : 'out';
  if (kind === 4) return `device ${index}'s flow, out`;
  if (kind < 2) return `device ${index}'s port, ${way}`;
  const node = Math.floor(index / plan.nics_per_node);
  return plan.nics_per_node === 1 ? `node ${node}'s uplink, ${way}`
    : `node ${node}'s NIC ${index % plan.nics_per_node}, ${way}`;
}

function stepText(step) {
  if (step.kind < kMessageStep) return `${kSteps[step.kind]} on device ${step.device}`;
  return `${kSteps[step.kind]} of a message, ${step.sender} to ${step.device}`;
}

// The step at a time; steps follow each other without gaps.
function stepAt(steps, time) {
  let lo = 0;
  let hi = steps.length;
  while (lo < hi) {
    const middle = (lo + hi) >> 1;
    if (steps[middle].end <= time) lo = middle + 1;
    else hi = middle;
  }
  return steps[lo];
}

function describePath(lines, direction, time) {
  const step = direction.path && stepAt(direction.path, time);
  if (step) lines.push(['critical path', `${stepText(step)}, ${timeText(step.end - step.start)}`]);
}

// What the peer did in the part of the wait in which it had not launched the message.
function peerDid(direction, span) {
  const end = span.start + span.wait.away;
  const times = new Map();
  for (const other of direction.spans[span.wait.peer]) {
    const time = Math.min(end, other.end) - Math.max(span.start, other.start);
    if (time > 0) times.set(kWhat[other.what], (times.get(kWhat[other.what]) || 0) + time);
  }
  return Array.from(times, ([what, time]) => `${kDoing[what]} for ${timeText(time)}`);
}

function describeWait(lines, plan, direction, span) {
  const {wait} = span;
  const kinds = kKinds.filter((_, k) => wait.kinds & (1 << k)).join(', ');
  lines.push(['waits for', `${kinds}, ${bytesText(wait.bytes)}, ${wait.sends ? 'from' : 'to'} device ${wait.peer}`]);
  lines.push(['link', portText(plan, wait.portKind, wait.port) +
    (wait.sharing ? `, shared with ${counted(wait.sharing, 'message')}` : '')]);
  const did = peerDid(direction, span);
  if (did.length) lines.push([`device ${wait.peer} was`, did.join(', ')]);
  const moved = Math.max(0, span.end - span.start - wait.away - wait.queued - wait.latency);
  const parts = [['queued', wait.queued], ['latency', wait.latency], ['moving', moved]]
    .filter(([, time]) => time >= 0.001).map(([name, time]) => `${name} ${timeText(time)}`);
  if (parts.length) lines.push(['the message', parts.join(', ')]);
  lines.push(['mostly for', `${stepText(wait.root)}, ${timeText(wait.root.time)}`]);
}

// Spans of the path are outlined, messages are lines from the sender's row to the receiver's.
function drawPath(context, timeline, direction) {
  const {lanes} = timeline;
  const tall = timeline.rowHeight >= 12;
  const at = (device, share) => timeline.atY(device) + share * timeline.rowHeight;
  const middle = (device) => at(device, (lanes.compute[0] + lanes.compute[1]) / 2);
  context.strokeStyle = timeline.colours.critical;
  context.fillStyle = timeline.colours.critical;
  context.lineWidth = timeline.rowHeight >= 5 ? 2 : 1.5;
  const outline = (step, device, lane) => {
    const x0 = timeline.atX(step.start);
    const x1 = timeline.atX(step.end);
    const y0 = at(device, lane[0]);
    const h = at(device, lane[1]) - y0;
    if (x1 - x0 < 4) context.fillRect(x0, y0, Math.max(x1 - x0, 1), h);
    else context.strokeRect(x0 + 1, y0 + 1, x1 - x0 - 2, h - 2);
  };
  const seen = direction.path.filter((step) => step.end >= timeline.x.lo && step.start <= timeline.x.hi);
  const messages = new NamedPath();
  for (const step of seen) {
    if (step.kind < kMessageStep) {
      if (tall) {
        outline(step, step.device, lanes.compute);
      } else {
        context.fillRect(timeline.atX(step.start), middle(step.device) - context.lineWidth / 2,
                         Math.max(timeline.atX(step.end) - timeline.atX(step.start), 1), context.lineWidth);
      }
      continue;
    }
    // Latency stays in the sender's row, the transfer goes to the receiver's.
    messages.moveTo(timeline.atX(step.start), middle(step.sender));
    messages.lineTo(timeline.atX(step.end), middle(step.kind === kMessageStep ? step.sender : step.device));
    if (!tall) continue;
    outline(step, step.sender, lanes.send);
    outline(step, step.device, lanes.receive);
  }
  // Lines across rows must not hide them where there are many.
  context.globalAlpha = Math.min(1, Math.max(0.15, timeline.inner.width / seen.length / 12));
  context.stroke(messages);
  context.globalAlpha = 1;
}

function criticalPathSwitch() {
  const box = element('input', {type: 'checkbox'});
  box.checked = criticalPath.shown;
  box.addEventListener('change', () => criticalPath.set(box.checked));
  return element('label', {}, box, 'critical path');
}
