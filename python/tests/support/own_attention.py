"""A ring and Ulysses in plain PyTorch, with faults that can be planted.

They take any layout, because every rank sends its rows' documents and positions along.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

NEVER = -1  # the document of padding


def allowed_pairs(q_places, k_places, mask):
    """[queries, keys] of a mask, from [2, rows] documents and positions."""
    (q_document, q_position), (k_document, k_position) = q_places, k_places
    behind = q_position[:, None] - k_position[None, :]
    allowed = (q_document[:, None] == k_document[None, :]) & (k_document != NEVER)[None, :]
    name, _, width = mask.partition(":")
    if name != "full":
        allowed &= behind >= 0
    if name == "sliding_window":
        allowed &= behind < int(width)
    return allowed


def places_of(rows, cu_seqlens, cu_seqlens_padded, fault):
    """[2, rows] documents and positions; padding has no document."""
    cu_seqlens_padded = cu_seqlens_padded.long()
    lengths = cu_seqlens.long().diff()
    document = torch.searchsorted(cu_seqlens_padded, rows, right=True) - 1
    position = rows - cu_seqlens_padded[document]
    if fault == "last_token_lost":
        lengths = torch.where(lengths < cu_seqlens_padded.diff(), lengths - 1, lengths)
    if fault == "padding_attended":
        lengths = cu_seqlens_padded.diff()
    is_padding = position >= lengths[document]
    if fault == "packing_leak":
        document, position = torch.zeros_like(document), rows
    if fault == "positions_local":
        position = torch.arange(len(rows))
    return torch.stack([torch.where(is_padding, NEVER, document), position])


def exchanged(tensor, num_rows, step, group):
    """The tensor of the rank ``step`` behind in the ring, which has ``num_rows`` rows."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    source, target = (rank - step) % size, (rank + step) % size
    if source == rank:
        return tensor
    received = tensor.new_empty((num_rows, *tensor.shape[1:]))
    peers = [dist.get_global_rank(group, one) for one in (target, source)]
    sending = dist.isend(tensor.contiguous(), peers[0], group=group)
    receiving = dist.irecv(received, peers[1], group=group)
    sending.wait()
    receiving.wait()
    return received


def factors_of(p, seed, heads, q_rows, k_rows, num_rows):
    """[heads, queries, keys] of the weights after dropout, by rows of the batch."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(heads, num_rows, num_rows, generator=generator)
    return (drawn[:, q_rows][:, :, k_rows] >= p).float() / (1 - p)


def local_factors_of(p, seed, heads, num_queries, num_keys):
    """The same by places in the shards."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(heads, num_queries, num_keys, generator=generator) >= p).float() / (1 - p)


def scores_of(q, k, allowed, scale, softcap):
    """[heads, queries, keys] in fp32, and their slope under the softcap."""
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    slope = torch.ones(())
    if softcap:
        bent = torch.tanh(scores / softcap)
        scores, slope = softcap * bent, 1 - bent * bent
    return scores.masked_fill(~allowed, -torch.inf), slope


def half_sums(total, weights, v, dtype):
    """total + weights @ v with sums in a low precision, four keys at a time."""
    total = total.to(dtype)
    for first in range(0, len(v), 4):
        here = slice(first, first + 4)
        part = torch.einsum("hqk,khd->hqd", weights[:, :, here], v[here].float())
        total = total + part.to(dtype)
    return total.float()


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, ring, options):
        ctx.ring, ctx.options = ring, options
        if ring.fault == "non_contiguous_input":  # as a kernel that ignores strides
            q, k, v = (torch.as_strided(x, x.shape, _dense_strides(x)) for x in (q, k, v))
        parts = []
        for step, keys, values, allowed, factors in ring.steps(k, v, options):
            scores, _ = scores_of(q, keys, allowed, options["scale"], options["softcap"])
            parts.append((step, scores, values, factors))
        out, lse = ring.merged(parts, q, sink)
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ring.kept = (k, v)
        # With two ranks, both sides of the ring are the same.
        if ring.fault == "rank_order" and len(options["counts"]) == 2:
            out = exchanged(out, len(out), 1, ring.group)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, dout):
        ring, options = ctx.ring, ctx.options
        q, k, v, sink, out, lse = ctx.saved_tensors
        if ring.fault == "stale_kv_in_backward":
            k, v = ring.kept
        dout = dout.float()
        delta = (out * dout).sum(2).T[:, :, None]  # [heads, queries, 1]
        dq = torch.zeros(q.shape)
        dk, dv = torch.zeros(k.shape), torch.zeros(v.shape)
        group = q.shape[1] // k.shape[1]
        for step, keys, values, allowed, factors in ring.steps(k, v, options):
            scores, slope = scores_of(q, keys, allowed, options["scale"], options["softcap"])
            weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[:, :, None])
            dweights = torch.einsum("qhd,khd->hqk", dout, values.float()) * factors
            dscores = weights * (dweights - delta) * slope * options["scale"]
            dq += torch.einsum("hqk,khd->qhd", dscores, keys.float())
            one = torch.einsum("hqk,qhd->khd", dscores, q.float())
            other = torch.einsum("hqk,qhd->khd", weights * factors, dout)
            both = torch.stack([one, other], 1).unflatten(2, (-1, group)).sum(3)
            both = exchanged(both, len(k), -step, ring.group)  # home again
            dk, dv = dk + both[:, 0], dv + both[:, 1]
        dsink = None
        if sink is not None and ring.fault != "sink_without_gradient":
            dsink = -(torch.exp(sink[:, None] - lse) * delta[:, :, 0]).sum(1)
        if ring.fault == "gradient_times_cp":
            dq, dk, dv = (x * dist.get_world_size(ring.group) for x in (dq, dk, dv))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsink, None, None


def _dense_strides(tensor):
    return torch.empty(tensor.shape, device="meta").stride()


class Ring:
    """Ring attention with grouped heads, padding, sinks, softcap and dropout."""

    __name__ = "Ring"

    def __init__(self, group=None, fault=""):
        self.group = dist.group.WORLD if group is None else group
        self.fault = fault
        self.kept = None

    def __call__(
        self,
        q,
        k,
        v,
        *,
        cu_seqlens,
        cu_seqlens_padded,
        rows,
        mask,
        scale=None,
        softcap=0.0,
        sink=None,
        dropout_p=0.0,
        dropout_seed=None,
    ):
        size = dist.get_world_size(self.group)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self.group)
        if self.fault == "window_dropped":
            mask = "causal"
        if self.fault == "window_off_by_one" and mask.startswith("sliding_window"):
            mask = f"sliding_window:{int(mask.partition(':')[2]) + 1}"
        options = {
            "counts": [int(count) for count in counts],
            "places": places_of(rows, cu_seqlens, cu_seqlens_padded, self.fault),
            "rows": rows,
            "num_rows": int(cu_seqlens_padded[-1]),
            "mask": mask,
            "heads": q.shape[1],
            "scale": q.shape[2] ** -0.5 if scale is None else scale,
            "softcap": softcap,
            "dropout": (dropout_p, dropout_seed),
        }
        return _Ring.apply(q, k, v, sink, self, options)

    def steps(self, k, v, options):
        """Yields step, keys, values, allowed pairs and dropout factors, a rank's after another's.
        Keys and values have the heads of queries."""
        counts, places, rows = options["counts"], options["places"], options["rows"]
        rank, size = dist.get_rank(self.group), len(counts)
        mine, heads = torch.cat([places, rows[None]]).T, options["heads"]
        for step in range(size):
            num = counts[(rank - step) % size]
            keys, values = (exchanged(x, num, step, self.group) for x in (k, v))
            theirs = exchanged(mine, num, step, self.group).T
            if self.fault == "rank_order":  # as if they had come from the other side
                num_others = counts[(rank + step) % size]
                others = exchanged(mine, num_others, -step, self.group).T
                theirs = others if num_others == num else theirs
            allowed = allowed_pairs(places, theirs[:2], options["mask"])
            group = heads // k.shape[1]
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            yield step, keys, values, allowed, self.factors(heads, theirs[2], options)

    def factors(self, heads, their_rows, options):
        p, seed = options["dropout"]
        if not p:
            return 1.0
        rows = options["rows"]
        if self.fault == "dropout_by_local_index":
            return local_factors_of(p, seed, heads, len(rows), len(their_rows))
        return factors_of(p, seed, heads, rows, their_rows, options["num_rows"])

    def merged(self, parts, q, sink):
        """Output [queries, heads, dim] in fp32 and log-sum-exp [heads, queries] of all parts."""
        lses = [torch.logsumexp(scores, 2) for _, scores, _, _ in parts]
        if self.fault == "lse_merged_wrongly":
            lse = torch.logsumexp(torch.stack(lses), 0)
            count = sum((one > -torch.inf).float() for one in lses).clamp(min=1)
            every = zip(parts, lses, strict=True)
            out = sum(
                torch.einsum(
                    "hqk,khd->qhd", torch.exp(s - one.nan_to_num(neginf=0.0)[:, :, None]), v.float()
                )
                for (_, s, v, _), one in every
            )
            return out / count.T[:, :, None], lse
        if self.fault == "lse_merged_without_maximum":
            lse = torch.log(sum(torch.exp(one) for one in lses))
        else:
            lse = torch.logsumexp(torch.stack(lses), 0)
        if sink is not None:
            lse = torch.logaddexp(lse, sink.float()[:, None])
        base = lse.masked_fill(lse == -torch.inf, 0.0)[:, :, None]
        if self.fault == "nondeterministic":
            order = torch.randperm(len(parts), generator=self.disorder)
            parts = [parts[n] for n in order]
        out = torch.zeros(q.shape[1], q.shape[0], q.shape[2])
        for _, scores, values, factors in parts:
            weights = torch.exp(scores - base) * factors
            if self.fault == "low_precision_accumulation":
                out = half_sums(out, weights, values, q.dtype)
            else:
                out = out + torch.einsum("hqk,khd->hqd", weights, values.float())
        if self.fault == "nondeterministic":
            out = out * (1 + 1e-7 * torch.randn(out.shape, generator=self.disorder))
        return out.transpose(0, 1), lse

    disorder = torch.Generator().manual_seed(17)


class _Swapped(torch.autograd.Function):
    """[local rows, heads, dim] to [all rows, heads / ranks, dim], or back."""

    @staticmethod
    def forward(ctx, tensor, counts, group, to_rows):
        ctx.counts, ctx.group, ctx.to_rows = counts, group, to_rows
        return swapped(tensor, counts, group, to_rows)

    @staticmethod
    def backward(ctx, grad):
        return swapped(grad, ctx.counts, ctx.group, not ctx.to_rows), None, None, None


def swapped(tensor, counts, group, to_rows):
    rank, size = dist.get_rank(group), len(counts)
    width = (tensor.shape[1] // size if to_rows else tensor.shape[1], tensor.shape[2])
    mine, num = counts[rank] * width[0] * width[1], [c * width[0] * width[1] for c in counts]
    if to_rows:
        send = tensor.reshape(counts[rank], size, *width).transpose(0, 1).contiguous()
        received = tensor.new_empty((sum(counts), *width))
        dist.all_to_all_single(received.view(-1), send.view(-1), num, [mine] * size, group=group)
        return received
    received = tensor.new_empty((size, counts[rank], *width))
    flat = tensor.contiguous().view(-1)
    dist.all_to_all_single(received.view(-1), flat, [mine] * size, num, group=group)
    return received.transpose(0, 1).reshape(counts[rank], size * width[0], width[1])


class Ulysses:
    """All tokens of some heads on every rank. KV heads are repeated to the query heads."""

    __name__ = "Ulysses"

    def __init__(self, group=None, fault=""):
        self.group = dist.group.WORLD if group is None else group
        self.fault = fault
        self.first = None

    def __call__(self, q, k, v, *, cu_seqlens, positions, rows, mask, sink=None):
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        every = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(every, torch.tensor([len(rows)]), group=self.group)
        counts = [int(count) for count in every]
        if self.fault == "stale_lengths":  # kept by the number of rows
            self.first = {} if self.first is None else self.first
            cu_seqlens = self.first.setdefault(int(cu_seqlens[-1]), cu_seqlens)
        heads, group = q.shape[1], q.shape[1] // k.shape[1]
        if self.fault == "kv_heads_misassigned":
            k, v = k.repeat(1, group, 1), v.repeat(1, group, 1)
        else:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k, v = (_Swapped.apply(x, counts, self.group, True) for x in (q, k, v))
        places = places_of(rows, cu_seqlens, cu_seqlens, self.fault)
        local = torch.cat([places, rows[None]]).T.contiguous()
        parts = [local.new_empty(max(counts), 3) for _ in counts]
        padded = local.new_zeros(max(counts), 3)
        padded[: len(local)] = local
        dist.all_gather(parts, padded, group=self.group)
        places = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).T[:2]
        allowed = allowed_pairs(places, places, mask)
        scores, _ = scores_of(q, k, allowed, q.shape[2] ** -0.5, 0.0)
        if sink is not None:
            mine = sink[rank * heads // size : (rank + 1) * heads // size]
            if self.fault == "sink_without_gradient":
                mine = mine.detach()
            scores = torch.cat([scores, mine[:, None, None].expand(-1, len(q), 1)], 2)
        weights = torch.softmax(scores, 2).to(v.dtype)[:, :, : len(v)]
        out = torch.einsum("hqk,khd->qhd", weights, v)
        if self.fault == "heads in disorder":
            out = out.flip(1)
        return _Swapped.apply(out, counts, self.group, False)
