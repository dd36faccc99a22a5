// Reading weights in two passes: first every tensor is looked up and checked and its place in
// memory fixed, then everything is packed. So a bad checkpoint fails before the first byte is
// copied, and the total for the progress bar is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/shards.h"
#include "kernels/ops/linear.h"

namespace weft {

struct AlignedDelete {
  void operator()(std::byte* p) const;
};
// Memory aligned to 64 bytes: a cache line, and the widest vector.
using AlignedBuffer = std::unique_ptr<std::byte[], AlignedDelete>;
AlignedBuffer MakeAligned(size_t bytes);

// Bytes packed so far, and in all, for this rank.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// Where and how matrices are packed: by default for the CPU, in memory that the arenas hold. With
// `place`, every arena is handed over when it is full (a copy to a device, say) and the matrices
// point to the address that comes back.
struct PackTarget {
  MatrixLayout layout = MatrixLayout::kPanels;
  std::function<std::byte*(const std::byte* arena, size_t bytes)> place;
};

// A row-major matrix inside a tensor.
struct MatrixView {
  const Tensor* tensor = nullptr;
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* scales = nullptr;  // FP8: [ceil(rows of all/128), ceil(cols/128)]
  int64_t row = 0;                // FP8: where the view starts in the rows that `scales` covers

  int64_t ScaleColumns() const { return (cols + 127) / 128; }
  MatrixView Rows(int64_t begin, int64_t count) const;
};

class PackPlan {
 public:
  // With `problems`, what is wrong with tensors is listed there and planning goes on, as if with
  // zeros; Run must not be called then.
  explicit PackPlan(const CheckpointFolder& folder, std::vector<std::string>* problems = nullptr,
                    PackTarget target = {})
      : folder_(folder), problems_(problems), target_(std::move(target)) {
    stand_in_.dtype_name = "F32";
  }

  // The tensor, its shape and type checked (fp32, bf16 or fp16), and marked as used.
  const Tensor& Use(const std::string& name, const std::vector<int64_t>& shape);
  // Those of matrices may be FP8 too, with block scales in a tensor NAME_scale_inv.
  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols);
  // [count, rows, cols], one matrix after the other, each with a scale grid of its own.
  std::vector<MatrixView> Stacked(const std::string& name, int64_t count, int64_t rows,
                                  int64_t cols);
  // Widened to fp32 at once; every number must be finite.
  std::vector<float> Vector(const std::string& name, int64_t size);

  bool Has(const std::string& name) const { return folder_.Find(name) != nullptr; }

  // Packs the rows of `slice`, of them the columns of `columns` where given, or with `transposed`
  // the transpose of all of `view`, into *out. `out` must stay where it is until Run is over.
  void Pack(const MatrixView& view, Slice slice, PackedMatrix* out);
  void Pack(const MatrixView& view, Slice slice, Slice columns, PackedMatrix* out);
  void PackTransposed(const MatrixView& view, PackedMatrix* out);

  // Matrices added since the last call share one buffer.
  void EndArena(AlignedBuffer* arena);

  void Run(const LoadProgress& progress);

  // Tensors of the checkpoint that nothing asked for.
  std::vector<const Tensor*> Unused() const;
  int64_t total_bytes() const { return total_bytes_; }

 private:
  struct Job {
    MatrixView view;
    int64_t column = 0;  // first one of the view
    bool transposed = false;
    PackedMatrix* out = nullptr;
    size_t offset = 0;  // in its arena
  };
  struct Arena {
    AlignedBuffer* buffer = nullptr;
    size_t bytes = 0;
    size_t end_job = 0;  // jobs_[previous end, end_job)
  };

  const Tensor& Find(const std::string& name, const std::vector<int64_t>& shape, bool fp8);
  const Tensor& Checked(const std::string& name, const std::vector<int64_t>& shape, bool fp8);
  const float* Scales(const std::string& name, const std::vector<int64_t>& shape);
  void AddJob(const MatrixView& view, int64_t column, bool transposed, PackedMatrix* out);
  void HandOver(size_t begin, size_t end, const Arena& arena);  // jobs of a full arena

  const CheckpointFolder& folder_;
  std::vector<std::string>* problems_;
  const PackTarget target_;
  Tensor stand_in_;  // without data, for a tensor with a problem
  std::set<std::string> used_;
  std::list<std::vector<float>> scales_;  // of FP8 tensors, widened; needed until Run is over
  std::vector<Job> jobs_;
  std::vector<Arena> arenas_;
  size_t open_bytes_ = 0;  // of the arena being filled
  int64_t total_bytes_ = 0;
};

// Copies `count` elements, widening bf16 and fp16.
void WidenToFloat(const void* src, DType dtype, int64_t count, float* dst);

}  // namespace weft
