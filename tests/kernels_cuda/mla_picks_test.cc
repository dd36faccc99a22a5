// Attention over picks that nobody has united: what the peers sent lies in the inbox already.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "kernels/ops/sparse_mla.h"
#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

constexpr int32_t kLatent = 512, kRope = 64, kWidth = kLatent + kRope, kPageTokens = 16;
constexpr float kScale = 0.15f;

// When what the last rank sends is there: before attention starts, while it waits, or never, and
// the wait is called off.
enum class Arrival { kBefore, kMeanwhile, kNever };

// A stream of its own, and a word that host and device see.
class Peer {
 public:
  Peer() {
    WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    WEFT_CUDA_CHECK(cudaHostAlloc(&aborted_, sizeof(int32_t), cudaHostAllocMapped));
    *aborted_ = 0;
  }
  ~Peer() {
    cudaStreamDestroy(stream_);
    cudaFreeHost(aborted_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int32_t* aborted() const { return aborted_; }
  void Send(const std::vector<uint32_t>& packets, void* inbox) const {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(inbox, packets.data(), packets.size() * sizeof(uint32_t),
                                    cudaMemcpyHostToDevice, stream_));
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void CallOff() const { *static_cast<volatile int32_t*>(aborted_) = 1; }

 private:
  cudaStream_t stream_ = nullptr;
  int32_t* aborted_ = nullptr;
};

struct Shape {
  int32_t ranks = 1, heads = 64, capacity = 100;
  std::vector<int32_t> found;  // [rows], picks of a rank; fewer than `capacity` are padded
  int64_t slots = 320;         // of a rank, in pages that lie in disorder
};

class Picks {
 public:
  Picks(Random* random, const Shape& shape) : shape_(shape) {
    const auto rows = static_cast<int64_t>(shape.found.size());
    const int64_t pages = shape.slots / kPageTokens;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t page = 0; page < pages; ++page) {
        tables_.push_back(static_cast<int32_t>((page * 7 + row) % pages));
      }
      table_of_.push_back(static_cast<int32_t>(rows - 1 - row));
    }
    for (int32_t g = 0; g < shape.ranks; ++g) {
      kv_.push_back(Rounded(random->Floats(shape.slots * kWidth)));
      std::vector<Item> items;
      for (const int32_t found : shape.found) {
        for (int32_t j = 0; j < shape.capacity; ++j) {
          const auto slot = static_cast<int32_t>(int64_t{j} * shape.slots / shape.capacity);
          items.push_back(j < found ? Item{static_cast<uint32_t>(random->Int(0, 1 << 30)), slot}
                                    : Item{});
        }
      }
      items_.push_back(std::move(items));
    }
    q_ = random->Floats(rows * shape.heads * kWidth);
  }

  // On `rank`, in an exchange of this epoch.
  std::vector<float> Run(int32_t rank, uint32_t epoch, Arrival arrival = Arrival::kBefore) const {
    const auto rows = static_cast<int32_t>(shape_.found.size());
    std::vector<std::unique_ptr<Device<char>>> caches;
    SparseMlaParams p;
    for (const std::vector<float>& kv : kv_) {
      caches.push_back(std::make_unique<Device<char>>(Encode(kv, DType::kBF16)));
      p.peers[caches.size() - 1] = caches.back()->data();
    }
    const int32_t there = arrival == Arrival::kBefore ? shape_.ranks : shape_.ranks - 1;
    const Device<uint32_t> packets(Packets(epoch, there)),
        epochs(std::vector<uint32_t>(static_cast<size_t>(rows), epoch - 1));
    const Device<Item> items(items_[static_cast<size_t>(rank)]);
    const Device<int32_t> tables(tables_), table_of(table_of_);
    const Peer peer;
    const std::vector<float> state(static_cast<size_t>(rows * shape_.heads), 5.0f);
    const Device<float> q(q_), max(state), sum(state),
        o(std::vector<float>(static_cast<size_t>(rows * shape_.heads * kLatent), 5.0f));
    p.rows = rows;
    p.heads = shape_.heads;
    p.latent = kLatent;
    p.rope = kRope;
    p.scale = kScale;
    p.kv = caches[0]->data();
    p.peer_shift = PeerShift(shape_.ranks);
    p.q = q.data();
    p.q_is_there = epoch % 2 == 1;
    p.o = o.data();
    p.max = max.data();
    p.sum = sum.data();
    p.picks.items = items.data();
    p.picks.capacity = shape_.capacity;
    p.picks.cache = {{shape_.ranks, 1, true},
                     {table_of.data(), tables.data(), shape_.slots / kPageTokens, kPageTokens}};
    ListInbox& inbox = p.picks.inbox;
    inbox.ranks = shape_.ranks;
    inbox.rank = rank;
    inbox.rows = rows;
    inbox.capacity = shape_.capacity;
    inbox.packets[rank] = packets.data();
    inbox.epochs = epochs.data();
    inbox.aborted = peer.aborted();
    const Exec exec = Context().exec(false);
    Check(MlaTakesPicks(p, exec), "takes picks");
    StartMlaOfPicksCuda(p, exec);
    EndMlaOfPicksCuda(p, exec);
    if (arrival != Arrival::kBefore) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      Check(cudaStreamQuery(Context().stream()) == cudaErrorNotReady, "it waits");
    }
    if (arrival == Arrival::kMeanwhile) peer.Send(Packets(epoch, shape_.ranks), packets.data());
    if (arrival == Arrival::kNever) peer.CallOff();
    return o.Host();
  }

  // Of the lists of the first `ranks` ranks.
  std::vector<float> Want(int32_t ranks) const {
    const auto rows = static_cast<int32_t>(shape_.found.size());
    SparseMlaParams p;
    p.rows = rows;
    p.heads = shape_.heads;
    p.latent = kLatent;
    p.rope = kRope;
    p.scale = kScale;
    p.list_stride = int64_t{shape_.ranks} * shape_.capacity;
    const std::vector<float> q = Rounded(q_);
    std::vector<float> kv;
    for (const std::vector<float>& part : kv_) kv.insert(kv.end(), part.begin(), part.end());
    const std::vector<char> encoded = Encode(kv, DType::kBF16);
    std::vector<int32_t> lists;
    for (int32_t row = 0; row < rows; ++row) {
      const auto* table =
          tables_.data() + table_of_[static_cast<size_t>(row)] * (shape_.slots / kPageTokens);
      for (int64_t g = 0; g < shape_.ranks; ++g) {
        for (int32_t j = 0; j < shape_.capacity; ++j) {
          const int32_t slot =
              items_[static_cast<size_t>(g)][static_cast<size_t>(row * shape_.capacity + j)].index;
          lists.push_back(slot < 0 || g >= ranks
                              ? -1
                              : static_cast<int32_t>(g * shape_.slots +
                                                     table[slot / kPageTokens] * kPageTokens +
                                                     slot % kPageTokens));
        }
      }
    }
    const std::vector<int32_t> counts(static_cast<size_t>(rows),
                                      static_cast<int32_t>(p.list_stride));
    p.q = q.data();
    p.kv = encoded.data();
    p.lists = lists.data();
    p.counts = counts.data();
    std::vector<float> o(static_cast<size_t>(rows * shape_.heads * kLatent)),
        lse(static_cast<size_t>(rows * shape_.heads));
    ref::SparseMla(p, o.data(), lse.data());
    return o;
  }

 private:
  // The lists of the first `ranks` ranks as they arrive, in the half of the inbox that `epoch`
  // uses.
  std::vector<uint32_t> Packets(uint32_t epoch, int32_t ranks) const {
    const auto rows = static_cast<int64_t>(shape_.found.size());
    ListInbox inbox;
    inbox.ranks = shape_.ranks;
    inbox.capacity = shape_.capacity;
    std::vector<uint32_t> packets(
        static_cast<size_t>(ListInbox::Bytes(shape_.ranks, rows, shape_.capacity) / 4));
    for (int32_t g = 0; g < ranks; ++g) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int32_t j = 0; j < shape_.capacity; ++j) {
          const Item item =
              items_[static_cast<size_t>(g)][static_cast<size_t>(row * shape_.capacity + j)];
          const auto at = static_cast<size_t>(4 * (inbox.At(row, epoch, g) + j));
          packets[at] = item.key;
          packets[at + 1] = packets[at + 3] = epoch;
          packets[at + 2] = static_cast<uint32_t>(item.index);
        }
      }
    }
    return packets;
  }

  const Shape shape_;
  std::vector<int32_t> tables_, table_of_;
  std::vector<std::vector<float>> kv_;    // [ranks], [slots, kWidth]
  std::vector<std::vector<Item>> items_;  // [ranks], [rows, capacity]
  std::vector<float> q_;
};

}  // namespace

GPU_TEST("sparse_mla over picks reads the lists of all ranks") {
  Random random(11);
  std::vector<Shape> shapes = {{1, 64, 100, {100}}, {2, 64, 100, {100, 37, 0}}, {3, 5, 64, {64}}};
  if (!TheSession().small) {
    shapes.insert(shapes.end(), {{2, 64, 1083, {1083}, 2000},
                                 {1, 128, 2048, {2048, 2000}, 4000},
                                 {8, 16, 300, {300}, 320},
                                 {5, 65, 65, std::vector<int32_t>(40, 65)}});
  }
  for (const Shape& shape : shapes) {
    const Picks picks(&random, shape);
    const std::vector<float> want = picks.Want(shape.ranks);
    const std::string where = std::to_string(shape.ranks) + " ranks, " +
                              std::to_string(shape.heads) + " heads, capacity " +
                              std::to_string(shape.capacity);
    std::vector<float> first;
    for (int32_t rank = 0; rank < shape.ranks; ++rank) {
      const std::vector<float> got = picks.Run(rank, static_cast<uint32_t>(rank) + 1);
      CheckRows(got, want, kLatent, 4e-3, where + ", rank " + std::to_string(rank));
      if (rank == 0) first = got;
      Check(BitsDiffer(got, first, kLatent), where + ": the same bits on all ranks");
    }
  }
}

GPU_TEST("sparse_mla over picks waits for lists and ends when the wait is called off") {
  if (TheSession().small) return;  // a sanitizer may hold launches back
  Random random(12);
  for (const Shape& shape : {Shape{2, 64, 100, {100, 37}}, Shape{3, 128, 2048, {2048}, 4000}}) {
    const Picks picks(&random, shape);
    const std::string where = std::to_string(shape.ranks) + " ranks";
    const std::vector<float> all = picks.Run(0, 1);
    const std::vector<float> late = picks.Run(0, 2, Arrival::kMeanwhile);
    Check(BitsDiffer(late, all, kLatent), where + ": late packets");
    const std::vector<float> some = picks.Run(0, 1, Arrival::kNever);
    CheckRows(some, picks.Want(shape.ranks - 1), kLatent, 4e-3, where + ": what did come");
  }
}
