// contextile/serving/kv_cache.h, contextile/serving/decode.h: a cache of keys and values that ranks
// share, and the attention of a decoding step to it.
#include <string>

#include "bind.h"
#include "contextile/serving/decode.h"
#include "contextile/serving/kv_cache.h"
#include "tensors.h"

namespace contextile::python {
namespace {

KvLayout kv_layout(std::int32_t num_ranks, std::int32_t interleave, std::int32_t page_size) {
  const KvLayout layout = {num_ranks, interleave, page_size};
  check_kv_layout(layout);
  return layout;
}

Rank checked_rank(const KvLayout& layout, std::int32_t rank) {
  if (rank < 0 || rank >= layout.num_ranks) {
    fail("rank: expected 0 to " + std::to_string(layout.num_ranks - 1) + ", found " +
         std::to_string(rank));
  }
  return Rank(rank);
}

std::int64_t checked_position(std::int64_t position, const char* name) {
  if (position < 0)
    fail(std::string(name) + ": expected at least 0, found " + std::to_string(position));
  return position;
}

nb::class_<KvLayout> bind_layout_fields(nb::module_& module) {
  return nb::class_<KvLayout>(module, "KvLayout",
                              R"(The layout of the tokens of requests on ranks and pages.

Ranks hold `interleave` consecutive tokens alternately, in pages of `page_size` tokens. All ranks
have the same block tables, in which an entry covers page_size * num_ranks tokens.

>>> from contextile.inference import KvLayout
>>> layout = KvLayout(num_ranks=4, page_size=16)
>>> layout.owner(2), layout.local_length(0, 3), layout.block_tokens
(2, 1, 64)
)")
      .def(
          "__init__",
          [](KvLayout* self, std::int32_t num_ranks, std::int32_t interleave,
             std::int32_t page_size) {
            new (self) KvLayout(kv_layout(num_ranks, interleave, page_size));
          },
          nb::kw_only(), "num_ranks"_a = 1, "interleave"_a = 1, "page_size"_a = 16,
          "Raises InvalidArgument unless the interleave divides the page size.")
      .def_ro("num_ranks", &KvLayout::num_ranks)
      .def_ro("interleave", &KvLayout::interleave)
      .def_ro("page_size", &KvLayout::page_size)
      .def_prop_ro("block_tokens", &KvLayout::block_tokens,
                   "Tokens that an entry of a block table covers, on all ranks.")
      .def("__eq__", [](const KvLayout& a, const KvLayout& b) { return a == b; })
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "KvLayout", {"num_ranks", "interleave", "page_size"});
      });
}

void bind_layout(nb::module_& module) {
  bind_layout_fields(module)
      .def(
          "num_blocks",
          [](const KvLayout& self, std::int64_t length) {
            return self.num_blocks(checked_position(length, "length"));
          },
          "length"_a,
          "Returns the number of entries in the table of a request with so many tokens.")
      .def(
          "owner",
          [](const KvLayout& self, std::int64_t position) {
            return self.owner(checked_position(position, "position"));
          },
          "position"_a, "Returns the rank that holds the token.")
      .def(
          "local",
          [](const KvLayout& self, std::int64_t position) {
            return self.local(checked_position(position, "position"));
          },
          "position"_a, "Returns the token's index among the tokens of its rank.")
      .def(
          "position",
          [](const KvLayout& self, std::int32_t rank, std::int64_t local) {
            return self.global(checked_rank(self, rank), checked_position(local, "local"));
          },
          "rank"_a, "local"_a, "Returns the position of a rank's token in the request.")
      .def(
          "local_length",
          [](const KvLayout& self, std::int32_t rank, std::int64_t length) {
            return self.local_length(checked_rank(self, rank), checked_position(length, "length"));
          },
          "rank"_a, "length"_a, "Returns how many of the first `length` tokens the rank holds.")
      .def(
          "local_keys",
          [](const KvLayout& self, std::int32_t rank, const std::vector<Range>& tokens) {
            return local_keys(self, checked_rank(self, rank), tokens);
          },
          "rank"_a, "tokens"_a, "Converts ranges of tokens to ranges of the rank's own tokens.")
      .def(
          "slots",
          [](const KvLayout& self, const std::vector<PageId>& table, std::int32_t rank,
             std::int64_t begin, std::int64_t end) {
            return numpy_array(slots_of(self, table, checked_rank(self, rank), {begin, end}));
          },
          "table"_a, "rank"_a, "begin"_a, "end"_a,
          "Returns the places of the tokens [begin, end) in the rank's pages, counted in tokens "
          "over all pages; -1 for tokens of other ranks. Raises InvalidArgument if the table is "
          "too short.");
}

using Tokens = std::vector<std::int32_t>;

nb::class_<KvCache> bind_cache_calls(nb::module_& module) {
  return nb::class_<KvCache>(module, "KvCache",
                             R"(Block tables of requests, and the prefixes they share.

The cache has only token ids and page numbers, no keys and values. Ranks that make the same calls
have the same tables. A call that fails changes nothing. Requests are whole numbers of your choice.

>>> from contextile.inference import KvCache, KvLayout
>>> cache = KvCache(layout=KvLayout(page_size=16), num_pages=100)
>>> cache.add(1, list(range(40)))       # no token of the prompt is cached yet
0
>>> cache.length(1), len(cache.table(1))
(40, 3)
)")
      .def(
          "__init__",
          [](KvCache* self, const KvLayout& layout, std::int32_t num_pages, bool share_prefixes) {
            new (self) KvCache({layout, num_pages, share_prefixes});
          },
          nb::kw_only(), "layout"_a, "num_pages"_a, "share_prefixes"_a = true)
      .def(
          "cached_tokens",
          [](const KvCache& self, const Tokens& tokens) { return self.cached_tokens(tokens); },
          "tokens"_a, "Returns how many tokens of a prompt are cached, at most all but the last.")
      .def(
          "add",
          [](KvCache& self, RequestId request, const Tokens& tokens) {
            return self.add(request, tokens);
          },
          "request"_a, "tokens"_a,
          "Begins a request with its prompt. Returns how many of its tokens are cached; None if "
          "too few pages are free.")
      .def(
          "append",
          [](KvCache& self, RequestId request, const Tokens& tokens) {
            return self.append(request, tokens);
          },
          "request"_a, "tokens"_a,
          "Appends tokens to a request. Returns False if too few pages are free.")
      .def("truncate", &KvCache::truncate, "request"_a, "length"_a,
           "Forgets all tokens of a request but the first `length`.")
      .def("fork", &KvCache::fork, "parent"_a, "child"_a,
           "Begins a request with the same tokens so far as its parent.")
      .def("free", &KvCache::free, "request"_a, "Ends a request and frees its pages.")
      .def("clear_prefixes", &KvCache::clear_prefixes,
           "Forgets every prefix that no request uses.");
}

void bind_cache(nb::module_& module) {
  bind_cache_calls(module)
      .def("__contains__", &KvCache::contains, "request"_a)
      .def("length", &KvCache::length, "request"_a, "Returns the number of tokens of a request.")
      .def(
          "tokens",
          [](const KvCache& self, RequestId request) {
            const auto tokens = self.tokens(request);
            return Tokens(tokens.begin(), tokens.end());
          },
          "request"_a, "Returns the token ids of a request.")
      .def(
          "table",
          [](const KvCache& self, RequestId request) {
            const auto table = self.table(request);
            return std::vector<PageId>(table.begin(), table.end());
          },
          "request"_a, "Returns the request's block table, a list of page numbers.")
      .def(
          "take_copies",
          [](KvCache& self) {
            std::vector<std::pair<PageId, PageId>> copies;
            for (const PageCopy& copy : self.take_copies()) copies.emplace_back(copy.from, copy.to);
            return copies;
          },
          "Returns pages (from, to) that every rank must copy before the next tokens are written, "
          "and empties the list.")
      .def_prop_ro("layout", [](const KvCache& self) { return self.layout(); })
      .def_prop_ro("num_requests", &KvCache::num_requests)
      .def_prop_ro("free_pages", &KvCache::free_pages)
      .def_prop_ro("unused_prefix_pages", &KvCache::unused_prefix_pages)
      .def_prop_ro(
          "digest", &KvCache::digest,
          "Digest of tables, lengths and tokens; equal on ranks that made the same calls.");
}

// Returns the view of pages [pages, page_size, heads, dim], and enters their properties into kv.
PagedTensor paged(const InArray& array, std::string_view name, PagedKv& kv) {
  check_place(array.device_type(), array.device_id(), {}, name);
  if (array.ndim() != 4 || (array.size() > 0 && array.shape(3) > 1 && array.stride(3) != 1)) {
    fail(std::string(name) + ": expected [pages, page_size, kv_heads, dim], elements side by side");
  }
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return array.dtype().code == static_cast<std::uint8_t>(code) && array.dtype().bits == bits;
  };
  const bool is_f32 = is(nb::dlpack::dtype_code::Float, 32);
  const bool is_bf16 = is(nb::dlpack::dtype_code::Bfloat, 16);
  if (!is_f32 && !is_bf16 && !is(nb::dlpack::dtype_code::Float, 16)) {
    fail(std::string(name) + ": expected float32, bfloat16 or float16, found " +
         dtype_text(array.dtype()));
  }
  kv.dtype = is_f32 ? KvDtype::kF32 : is_bf16 ? KvDtype::kBf16 : KvDtype::kF16;
  kv.page_size = static_cast<std::int32_t>(array.shape(1));
  kv.kv_heads = static_cast<std::int32_t>(array.shape(2));
  return {array.data(),
          array.stride(0),
          array.stride(1),
          array.stride(2),
          static_cast<std::int32_t>(array.shape(3)),
          {}};
}

// The table of a request, and the tokens that each of its queries sees.
using Asked = std::pair<std::vector<PageId>, std::vector<std::vector<Range>>>;

void attend(Transport& transport, const KvLayout& layout, const InArray& q, const InArray& k,
            const InArray& v, const std::vector<Asked>& asked, const OutArray& out,
            const OutStats& lse, const std::string& mode, float scale, float softcap,
            std::int32_t hop_b_groups) {
  if (moves_device_memory(transport)) fail("transport: expected one of the CPU's, found a GPU's");
  if (layout.num_ranks != transport.size()) {
    fail("layout: expected the group's " + std::to_string(transport.size()) + " ranks, found " +
         std::to_string(layout.num_ranks));
  }
  PagedKv kv;
  kv.v = paged(v, "v", kv);
  const PagedKv of_values = kv;
  kv.k = paged(k, "k", kv);
  if (of_values.dtype != kv.dtype || of_values.page_size != kv.page_size ||
      of_values.kv_heads != kv.kv_heads || kv.page_size != layout.page_size ||
      k.shape(0) != v.shape(0)) {
    fail("k, v: expected the same dtype, pages and heads, and pages of the layout's " +
         std::to_string(layout.page_size) + " tokens");
  }
  std::vector<std::vector<Range>> keys(asked.size());
  std::vector<std::vector<std::int32_t>> splits(asked.size());
  std::vector<PagedRequest> requests;
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto& [table, rows] = asked[i];
    for (const PageId page : table) {
      if (page.value < 0 || static_cast<std::size_t>(page.value) >= k.shape(0)) {
        fail("requests: expected pages of 0 to " + std::to_string(k.shape(0)) + ", found " +
             std::to_string(page.value));
      }
    }
    splits[i] = {0};
    for (const std::vector<Range>& seen : rows) {
      for (const Range& range : local_keys(layout, transport.rank(), seen))
        keys[i].push_back(range);
      splits[i].push_back(static_cast<std::int32_t>(keys[i].size()));
    }
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    requests.push_back({first_row, num_rows, table, keys[i], splits[i]});
    first_row += num_rows;
  }
  const TensorView q_view = view_of_array(q, "q");
  const TensorView out_view = view_of_array(out, "out");
  const PartialOutput written = {out_view, stats_of_array(lse, out_view, "lse")};
  const DecodeOptions options = {
      parse_decode_mode(mode), {scale, softcap}, Dtype::kF32, hop_b_groups};
  const WithoutGil release;
  const TransportUse use(transport, "attend_to_pages");
  try {
    DecodeGroup(transport, find_paged_kernel()).attend(options, kv, q_view, requests, written);
  } catch (const std::exception& error) {  // also an interrupt, which no peer can know of
    transport.abort(error.what());
    throw;
  }
}

}  // namespace

void bind_inference(nb::module_& module) {
  bind_layout(module);
  bind_cache(module);
  module.def("attend_to_pages", &attend, "transport"_a, nb::kw_only(), "layout"_a, "q"_a, "k"_a,
             "v"_a, "requests"_a, "out"_a, "lse"_a, "mode"_a, "scale"_a, "softcap"_a,
             "hop_b_groups"_a);
  module.def(
      "decode_bytes",
      [](const std::string& mode, std::int32_t num_ranks, std::int64_t num_rows, std::int32_t heads,
         std::int32_t head_dim, std::int32_t value_dim) {
        return decode_bytes(parse_decode_mode(mode), num_ranks, num_rows, heads, head_dim,
                            value_dim, Dtype::kF32);
      },
      nb::kw_only(), "mode"_a, "num_ranks"_a, "num_rows"_a, "heads"_a, "head_dim"_a, "value_dim"_a,
      R"(Returns the bytes that one rank sends in a decoding step of one layer.

heads is the number of query heads per rank; results move in float32.

>>> from contextile.inference import decode_bytes
>>> decode_bytes(mode="a2a", num_ranks=4, num_rows=8, heads=4, head_dim=128, value_dim=128) > 0
True
)");
}

}  // namespace contextile::python
