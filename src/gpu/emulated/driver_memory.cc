// Memory and copies of the emulated driver.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "gpu/emulated/box_map_format.h"
#include "gpu/emulated/device.h"
#include "gpu/emulated/functions.h"
#include "gpu/emulated/handles.h"

namespace contextile::emulated {
namespace {

void* host(DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

// Memory begins as NaN.
Result take(DevicePointer* pointer, std::size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  if (bytes > device().largest_allocation) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return kOutOfMemory;
  std::memset(memory, 0xff, bytes);
  *pointer = reinterpret_cast<DevicePointer>(memory);
  device().allocations[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return kSuccess;
}

Result release(DevicePointer pointer) {
  if (device().allocations.erase(static_cast<std::uintptr_t>(pointer)) == 0) return kInvalidValue;
  std::free(host(pointer));
  return kSuccess;
}

bool is_multiple(const void* place, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(place) % of == 0;
}

}  // namespace

Result create_pool(void** pool, const cuda::PoolProperties* properties) {
  return guarded([&] {
    const bool is_of_device = properties->allocation == 1 && properties->location == 1 &&
                              properties->device == 7 && properties->reserved[0] == 0;
    return is_of_device ? make_handle(pool, device().pools) : kInvalidValue;
  });
}

Result destroy_pool(void* pool) {
  return guarded([&] { return drop_handle(pool, device().pools); });
}

Result pool_attribute(void* pool, int attribute, void* value) {
  return guarded([&] {
    const bool is_known = device().pools.contains(pool) && attribute == cuda::kReleaseThreshold;
    return is_known && value != nullptr ? kSuccess : kInvalidValue;
  });
}

Result allocate(DevicePointer* pointer, std::size_t bytes) {
  return guarded([&] { return take(pointer, bytes); });
}

Result free(DevicePointer pointer) {
  return guarded([&] { return release(pointer); });
}

// The driver allocates the memory of graphs in another way.
Result allocate_async(DevicePointer* pointer, std::size_t bytes, void* pool, void* stream) {
  return guarded([&] {
    if (is_captured(stream)) return kNotSupported;
    const bool is_known = is_stream(stream) && device().pools.contains(pool);
    return is_known ? take(pointer, bytes) : kInvalidHandle;
  });
}

Result free_async(DevicePointer pointer, void* stream) {
  return guarded([&] {
    if (is_captured(stream)) return kNotSupported;
    return is_stream(stream) ? release(pointer) : kInvalidHandle;
  });
}

Result allocate_host(void** memory, std::size_t bytes, unsigned /*flags*/) {
  return guarded([&] {
    *memory = std::malloc(bytes);
    if (*memory == nullptr) return kOutOfMemory;
    device().pinned.insert(*memory);
    return kSuccess;
  });
}

Result free_host(void* memory) {
  return guarded([&] { return drop_handle(memory, device().pinned); });
}

// A captured copy reads memory that must be there whenever the graph runs.
Result to_device(DevicePointer to, const void* from, std::size_t bytes, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_memory(to, bytes)) return kInvalidValue;
    return on_stream(stream, [=] {
      std::memcpy(host(to), from, bytes);
      return kSuccess;
    });
  });
}

Result to_host(void* to, DevicePointer from, std::size_t bytes) {
  return guarded([&] {
    if (!is_memory(from, bytes)) return kInvalidValue;
    std::memcpy(to, host(from), bytes);
    return kSuccess;
  });
}

Result copy(DevicePointer to, DevicePointer from, std::size_t bytes, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_memory(to, bytes) || !is_memory(from, bytes)) {
      return kInvalidValue;
    }
    return on_stream(stream, [=] {
      std::memmove(host(to), host(from), bytes);
      return kSuccess;
    });
  });
}

Result fill(DevicePointer to, unsigned char value, std::size_t bytes, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_memory(to, bytes)) return kInvalidValue;
    return on_stream(stream, [=] {
      std::memset(host(to), value, bytes);
      return kSuccess;
    });
  });
}

Result encode_map(void* map, int type, std::uint32_t rank, void* data, const std::uint64_t* sizes,
                  const std::uint64_t* strides, const std::uint32_t* box,
                  const std::uint32_t* every, int interleave, int swizzle, int promotion,
                  int fill) {
  return guarded([&] {
    if (!is_multiple(map, 64) || !is_multiple(data, 16) || type != 1 || rank != 3 ||
        interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0 || box[0] * 2 > 128) {
      return kInvalidValue;
    }
    for (std::uint32_t d = 0; d < rank; ++d) {
      if (sizes[d] == 0 || sizes[d] > (std::uint64_t{1} << 32) || box[d] == 0 || box[d] > 256 ||
          every[d] != 1) {
        return kInvalidValue;
      }
      if (d > 0 && (strides[d - 1] % 16 != 0 || strides[d - 1] >= (std::uint64_t{1} << 40))) {
        return kInvalidValue;
      }
    }
    const auto count = [](auto size) { return static_cast<std::int32_t>(size); };
    const auto bytes = [](std::uint64_t stride) { return static_cast<std::int64_t>(stride); };
    *static_cast<cuda::BoxMap*>(map) = cuda::packed_map(
        {data, count(sizes[0]), count(sizes[1]), static_cast<std::int64_t>(sizes[2]),
         bytes(strides[0]), bytes(strides[1]), count(box[0]), count(box[1]), count(box[2])});
    return kSuccess;
  });
}

}  // namespace contextile::emulated
