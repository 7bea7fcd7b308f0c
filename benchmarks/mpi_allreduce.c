/* MPI_Allreduce of floats in place: prints the seconds of every sample (slowest rank) and the largest error, relative to
   the largest contribution. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP_CALLS = 2, MAX_CALLS = 100 };
static const double SAMPLE_TARGET_S = 0.02;

static float contribution(int rank, long i) { return (float)((i * 7 + rank * 13) % 1000 - 500) / 128.0f; }

static double timed(float* data, int count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double started = MPI_Wtime();
  for (int call = 0; call < calls; call++)
    MPI_Allreduce(MPI_IN_PLACE, data + (long)call * count, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  double seconds = (MPI_Wtime() - started) / calls;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 3) return 2;
  const int count = atoi(argv[1]), samples = atoi(argv[2]);
  int rank, workers;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &workers);
  float* data = calloc((size_t)count * MAX_CALLS, sizeof *data);
  if (!data) return 3;
  double seconds = 0, error = 0, largest = 0;
  for (int call = 0; call < WARM_UP_CALLS; call++) seconds = timed(data, count, 1);
  int calls = (int)fmin(MAX_CALLS, fmax(1, SAMPLE_TARGET_S / seconds));
  for (int sample = 0; sample < samples; sample++) {
    for (int call = 0; call < calls; call++)
      for (long i = 0; i < count; i++) data[(long)call * count + i] = contribution(rank, i);
    seconds = timed(data, count, calls);
    for (int call = 0; call < calls; call++)
      for (long i = 0; i < count; i++) {
        double exact = 0;
        for (int other = 0; other < workers; other++) exact += contribution(other, i);
        error = fmax(error, fabs(data[(long)call * count + i] - exact));
        largest = fmax(largest, fabs(contribution(rank, i)));
      }
    if (rank == 0) printf("%.9f\n", seconds);
  }
  error /= largest;  /* every rank contributes the same values in another order */
  MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) printf("error %.9g\n", error);
  MPI_Finalize();
  return 0;
}
