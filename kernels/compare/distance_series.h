// The series of MeasureNearer, for kernels too: squared distances from the truth.
#pragma once

namespace quantgate {

enum DistanceSeries { kSubjectDistance, kReferenceDistance, kDistanceSeriesCount };

}  // namespace quantgate
