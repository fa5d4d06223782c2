#include "index.hpp"

#include <algorithm>
#include <stdexcept>

namespace hps {

Index::Index() : before_(kLeastBuckets), after_(kLeastBuckets) {
    bucket_at(after_ + kTail - 1);
}

// The bucket of a number, for which memory is made if there is none yet.
Bucket* Index::bucket_at(uint64_t number) {
    if (number >= num_mapped_) {
        memory_.grow((number + 1) * sizeof(Bucket));
        buckets_ = reinterpret_cast<Bucket*>(memory_.data());
        num_mapped_ = memory_.range().bytes / sizeof(Bucket);
    }
    return buckets_ + number;
}

uint64_t Index::buckets_for(uint64_t num_keys) {
    uint64_t n = std::max(num_keys * 16 / (Bucket::kSlots * 11) + 1, kLeastBuckets);
    while (max_keys(n) < num_keys) ++n;
    return n;
}

size_t Index::bytes_for(uint64_t num_keys) {
    return (buckets_for(num_keys) + kTail) * sizeof(Bucket);
}

void Index::reserve(uint64_t num_keys) {
    if (size_ != 0 || before_ != after_) return;
    const uint64_t n = buckets_for(num_keys);
    if (n <= after_) return;
    bucket_at(n + kTail - 1);
    before_ = after_ = n;
}

void Index::start_growth() {
    const uint64_t n = after_ < 4096 ? 2 * after_ : after_ + after_ / 4;
    bucket_at(n + kTail - 1);
    after_ = n;
    unmoved_ = before_;
    frontier_ = uint64_t{1} << 32;
}

// Removes the entries of one bucket whose home, by the old number of buckets, is in [first, last).
void Index::take_out(uint64_t number, uint64_t first, uint64_t last) {
    Bucket& bucket = buckets_[number];
    uint32_t size = bucket.size();
    for (uint32_t i = 0; i < size;) {
        const uint64_t hash = bucket.hash[i];
        const uint64_t home = Homes::scaled(hash, before_);
        if ((hash >> 32) >= frontier_ || home < first || home >= last) {
            ++i;
            continue;
        }
        if (home != number) --buckets_[home].displaced;
        moving_.push_back({hash, bucket.row(i)});
        bucket.remove(i, size--);
    }
}

// Moves the entries of the last buckets that have not moved yet.
void Index::move_some() {
    const uint64_t last = unmoved_;
    const uint64_t first = last - std::min(last, kAtOnce);
    uint64_t displaced = 0;
    for (uint64_t b = first; b < last; ++b) displaced += buckets_[b].displaced;
    moving_.clear();
    moving_.reserve((last - first) * Bucket::kSlots + displaced);
    for (uint64_t b = first; b < last; ++b) take_out(b, first, last);
    const auto is_left = [this](uint64_t b) { return buckets_[b].displaced != 0; };
    uint64_t beyond = last;
    for (uint64_t b = first; b < last; ++b) {
        while (is_left(b)) take_out(beyond++, first, last);
    }
    unmoved_ = first;
    // The first hash whose home was `first`.
    frontier_ = ((first << 32) + before_ - 1) / before_;
    for (const Entry& e : moving_) put(e.hash, e.row);
    if (unmoved_ == 0) before_ = after_;
}

void Index::put(uint64_t hash, uint32_t row) {
    const uint64_t home = home_number(hash);
    for (uint64_t b = home;; ++b) {
        Bucket* bucket = bucket_at(b);
        if (bucket->full()) continue;
        bucket->append(bucket->size(), hash, row);
        buckets_[home].displaced += b != home;
        return;
    }
}

void Index::insert(uint64_t hash, uint32_t row) {
    if (before_ != after_) {
        if (size_ % kInserts == 0) move_some();
    } else if (size_ >= max_keys(after_)) {
        start_growth();
    }
    const uint64_t home = home_number(hash);
    Bucket& bucket = buckets_[home];
    const uint32_t i = bucket.size();
    if (i < Bucket::kSlots) [[likely]] {
        bucket.append(i, hash, row);
    } else {
        uint64_t b = home;
        while (bucket_at(b)->full()) ++b;
        if (b - home > kMaxDistance) {
            throw std::runtime_error(
                "table index: more than 3000 keys share the same hash bits; these keys were made "
                "to collide. Hash the raw features with another seed");
        }
        put(hash, row);
    }
    ++size_;
}

Index::Place Index::locate(uint64_t hash) const {
    const uint64_t home = home_number(hash);
    uint32_t displaced = buckets_[home].displaced;
    for (uint64_t b = home;; ++b) {
        Bucket& bucket = buckets_[b];
        if (const uint32_t mask = matching(bucket, hash); mask != 0) {
            const auto i = static_cast<uint32_t>(__builtin_ctz(mask));
            if (bucket.row(i) != kNoRow) return {&bucket, i};  // else what an empty slot held
        }
        const uint32_t size = b == home ? 0 : bucket.size();
        for (uint32_t i = 0; i < size; ++i) displaced -= home_number(bucket.hash[i]) == home;
        if (displaced == 0) return {nullptr, 0};
    }
}

uint32_t Index::find(uint64_t hash) const {
    const Bucket* home = buckets_ + home_number(hash);
    const uint32_t known = candidate(*home, matching(*home, hash));
    if (known != kUnsure) return known;
    // A hash is in one place only: where it lies near its home, nothing needs to be counted.
    for (const Bucket* b = home + 1; b <= home + kNear; ++b) {
        const uint32_t mask = matching(*b, hash);
        if (mask == 0) continue;
        const uint32_t row = b->row(static_cast<uint32_t>(__builtin_ctz(mask)));
        if (row != kNoRow) return row;
    }
    const Place place = locate(hash);
    return place.bucket == nullptr ? kNoRow : place.bucket->row(place.slot);
}

void Index::replace(uint64_t hash, uint32_t row) {
    const Place place = locate(hash);
    if (place.bucket == nullptr) throw std::logic_error("table index: no such key");
    place.bucket->inverse[place.slot] = ~row;
}

void Index::erase(uint64_t hash) {
    const Place place = locate(hash);
    if (place.bucket == nullptr) throw std::logic_error("table index: no such key");
    place.bucket->remove(place.slot, place.bucket->size());
    Bucket* home = buckets_ + home_number(hash);
    home->displaced -= place.bucket != home;
    --size_;
}

}  // namespace hps
