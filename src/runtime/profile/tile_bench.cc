#include "runtime/profile/tile_bench.h"

#include "kernel/tensor.h"

namespace contextile {

void TileBench::forward() {
  std::vector<ForwardTile> list;
  for (QueryTensors& q : queries_) {
    list.push_back({q.q.view(),
                    keys_.k.view(),
                    keys_.v.view(),
                    q.o.view(),
                    q.lse.stats(),
                    {&band_, 1},
                    /*init=*/true});
  }
  kernel_.forward(params_, list);
}

void TileBench::backward() {
  std::vector<BackwardTile> list;
  for (QueryTensors& q : queries_) {
    list.push_back({q.q.view(),
                    keys_.k.view(),
                    keys_.v.view(),
                    q.dout.view(),
                    q.lse.stats(),
                    q.delta.stats(),
                    q.dq.view(),
                    keys_.dk.view(),
                    keys_.dv.view(),
                    {&band_, 1},
                    /*init_dq=*/true,
                    /*init_dkv=*/&q == queries_.data()});
  }
  kernel_.backward(params_, list);
}

}  // namespace contextile
