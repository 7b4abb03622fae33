// The functions of a CUDA driver for an emulated device, with the checks of arguments that the
// driver's manual names. Kernels are PTX, which the machine of machine.h executes. They have the
// names of the members of cuda::Library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/driver_library.h"

namespace contextile::emulated {

using cuda::DevicePointer;
using cuda::Result;

Result init(unsigned flags);
// The text of a failed launch or of a refused module says what was wrong.
Result error_text(Result error, const char** text);
Result device_count(int* count);
Result device_get(int* device, int ordinal);
Result device_name(char* name, int size, int which);
Result device_uuid(cuda::Uuid* uuid, int which);
Result device_attribute(int* value, int attribute, int which);
Result retain_context(void** context, int which);
Result release_context(int which);
Result set_context(void* context);
Result get_context(void** context);
Result priorities(int* least, int* greatest);

Result create_pool(void** pool, const cuda::PoolProperties* properties);
Result destroy_pool(void* pool);
Result pool_attribute(void* pool, int attribute, void* value);
Result allocate(DevicePointer* pointer, std::size_t bytes);
Result free(DevicePointer pointer);
Result allocate_async(DevicePointer* pointer, std::size_t bytes, void* pool, void* stream);
Result free_async(DevicePointer pointer, void* stream);
Result allocate_host(void** memory, std::size_t bytes, unsigned flags);
Result free_host(void* memory);
Result to_device(DevicePointer to, const void* from, std::size_t bytes, void* stream);
Result to_host(void* to, DevicePointer from, std::size_t bytes);
Result copy(DevicePointer to, DevicePointer from, std::size_t bytes, void* stream);
Result fill(DevicePointer to, unsigned char value, std::size_t bytes, void* stream);
// Tensors of 16-bit elements and three dimensions, the kind of map that kernels read.
Result encode_map(void* map, int type, std::uint32_t rank, void* data, const std::uint64_t* sizes,
                  const std::uint64_t* strides, const std::uint32_t* box,
                  const std::uint32_t* every, int interleave, int swizzle, int promotion, int fill);

Result create_stream(void** stream, unsigned flags, int priority);
Result destroy_stream(void* stream);
Result synchronize(void* stream);
Result wait_event(void* stream, void* event, unsigned flags);
Result create_event(void** event, unsigned flags);
Result destroy_event(void* event);
Result record_event(void* event, void* stream);
Result query_event(void* event);

// A module is the text of PTX.
Result load_module(void** module, const void* image);
Result unload_module(void* module);
Result get_function(void** function, void* module, const char* name);
Result set_function(void* function, int attribute, int value);
// The only parameter of a kernel is a struct.
Result parameter_info(void* function, std::size_t index, std::size_t* offset, std::size_t* bytes);
Result launch(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
              unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
              void** arguments, void** extra);

Result begin_capture(void* stream, int mode);
Result end_capture(void* stream, void** graph);
Result is_capturing(void* stream, int* status);
// The last parameter has the driver's type.
Result instantiate(void** executable, void* graph, unsigned long long flags);  // NOLINT
Result launch_graph(void* executable, void* stream);
Result destroy_graph(void* graph);
Result destroy_executable(void* executable);

}  // namespace contextile::emulated
