// Arguments of Megatron-LM that are not part of a set-up.
#pragma once

#include "training/setup/setting_reader.h"

namespace contextile {

[[nodiscard]] SettingTables megatron_tables();

}  // namespace contextile
