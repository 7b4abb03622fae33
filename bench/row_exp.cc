#include <fmt/format.h>
#include <chrono>
#include <map>
#include "contextile/bounds.h"
#include "contextile/data.h"
#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/simulate.h"
#include "contextile/strategy.h"
#include "contextile/verify.h"
#include "planner/placement.h"
using namespace contextile;
static double now(){return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();}
int main(int argc,char**argv){
  std::string cl=argv[1], ds=argv[2], mask=argv[3]; int nodes=std::stoi(argv[4]); int kv=std::stoi(argv[5]); long tpd=4096; bool all=argc>6;
  Cluster c=load_cluster(fmt::format("{}:{}x8",cl,nodes)); AttentionShape sh; sh.q_heads=32; sh.kv_heads=kv;
  long tokens=tpd*nodes*8; auto len= ds=="single"?std::vector<std::int64_t>{tokens}:batches_from_dataset(ds,{.tokens=tokens,.seed=1}).front();
  MaskUse use=parse_mask_use(mask); Workload w=make_workload(len,sh,{&use,1});
  double bf=lower_bound(w,c,Direction::kForward,{}).time_us,bb=lower_bound(w,c,Direction::kBackward,{}).time_us;
  fmt::print("{} {} {} {}x8 kv{}: bound {:.0f}+{:.0f}={:.0f}\n",cl,ds,mask,nodes,kv,bf,bb,bf+bb);
  StrategyRequest rq; 
  std::vector<std::pair<std::string,Schedule>> ss;
  for(int s:{2,4,8}) ss.push_back({fmt::format("ovl{}",s),OverlapOptions{s,s>4?2:1}});
  for(int s:{2,3,4,6,8,16}) ss.push_back({fmt::format("tl{}",s),TimelineOptions{s,s>8?2:1}});
  for(int s:{1,2,3,4}) for(double f:{0.0,40.0}) ss.push_back({fmt::format("ord{}f{}",s,f),InOrderOptions{s,1,f}});
  for(long bs:{512L,1024L}) for(int u:{1,2}){ 
    bool skip=(getenv("BS")&&bs!=atol(getenv("BS")))||(getenv("UN")&&u!=atol(getenv("UN")))||(u==2&&kv%8!=0); if(skip){continue;}

    double t0=now(); auto pt=std::make_shared<const PricedTiles>(price_tiles(w,c,bs,true,true)); double t1=now();
    PlacementChoice ch; ch.unit=PlacedUnit(u); ch.block_size=bs; ch.head_groups=u==2?8:1; ch.seed=2;
    Placement p=place(w,c,pt,ch,rq,true); double t2=now();
    std::pair<double,std::string> F{1e18,""},B{1e18,""}; std::string line;
    double ts=0; int n=0;
    for(auto&[nm,s]:ss){ double a=now(); Plan pl=build_plan(w,c,arrange_placement(w,c,p,rq,{s,s},true)); Simulation sm=simulate(pl,c); ts+=now()-a; ++n; F=std::min(F,{sm.forward->time_us,nm}); B=std::min(B,{sm.backward->time_us,nm}); auto bd=[&](const SimulatedDirection&x){std::array<double,5> a{}; for(auto&d:x.devices){for(int i=0;i<4;++i)a[i]+=d.activity_us[i]/x.devices.size();a[4]+=d.idle_us/x.devices.size();} return fmt::format("att {:.0f} mrg {:.0f} lau {:.0f} exp {:.0f} idle {:.0f}",a[0],a[1],a[2],a[3],a[4]);}; line+=bd(*sm.forward)+" | "+bd(*sm.backward); line+=fmt::format("    {} {:.0f}({:.2f}) {:.0f}({:.2f})\n",nm,sm.forward->time_us,sm.forward->time_us/bf,sm.backward->time_us,sm.backward->time_us/bb); }
    fmt::print("  bs {} {} tiles {}: best {:.0f} ({} {:.0f} {:.2f}x, {} {:.0f} {:.2f}x) = {:.3f}x est {:.0f} | price {:.0f} place {:.0f} plan {:.0f} ms\n",bs,u==2?"spread":"rows",pt->tiles.all_tiles.size(),F.first+B.first,F.second,F.first,F.first/bf,B.second,B.first,B.first/bb,(F.first+B.first)/(bf+bb),p.estimate_us,1e3*(t1-t0),1e3*(t2-t1),1e3*ts/n);
    if(all) fmt::print("{}",line);
  }
}
