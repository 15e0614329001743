// sm90_cluster.cuh of src/backend/cuda on the emulated machine, which has no clusters.
#pragma once

#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

inline int cluster_rank() { return 0; }
inline void cluster_arrive() {}
inline void cluster_wait() {}
inline std::uint32_t address_in(const void* own, int) { return shared_address(own); }
inline void barrier_arrive_at(std::uint32_t address) { emulated::arrive(address); }
template <bool All>
void copy_box_at(std::uint16_t, std::uint32_t to, const CUtensorMap* map, int column, int row,
                 std::uint32_t barrier) {
    static_assert(!All);
    copy_box_to(to, *map, column, row, barrier);
}
inline void barrier_expect_at(std::uint32_t barrier, int bytes) { emulated::arrive(barrier, bytes); }
inline void barrier_wait_at(std::uint32_t barrier, int phase) { wait_at(barrier, phase); }

}  // namespace dgemma::backend::cuda
