// PyTorch's attention compared with the kernels.
#pragma once

#include <string>

namespace contextile {

// Runs bench/torch_attention.py with this interpreter and prints its rates, those of the preferred
// kernel and their ratio; one line if the interpreter cannot import torch.
void print_beside_torch(const std::string& python, int repeats);

}  // namespace contextile
