// Includes everything that planning, proof, prediction and attention in this process need, in
// reading order. These headers include no others. Headers for adding a method, a transport or a
// kernel are in contextile/extend, those of inference in contextile/serving, and the rest, such as
// the ranks and planners of a training run, in contextile/advanced.
#pragma once

// clang-format off
#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/workload.h"
#include "contextile/data.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "contextile/plan_options.h"
#include "contextile/planner.h"
#include "contextile/schedule.h"
#include "contextile/simulate.h"
#include "contextile/bounds.h"
#include "contextile/report.h"
#include "contextile/tensor.h"
#include "contextile/execution.h"
#include "contextile/inproc_attention.h"
// clang-format on
