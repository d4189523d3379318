/* mpicheck OPERATION - allreduce or alltoall over a series of sizes; every rank checks every element. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* element is what rank "from" sends to rank "to" at a place of a round. */
static long element(int from, int to, int place, int round)
{
	return 1000003L * from + 10007L * to + 31L * place + round;
}

static long allreduce(int rank, int ranks, int count, int round)
{
	long wrong = 0, *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
	for (int i = 0; i < count; i++)
		in[i] = element(rank, 0, i, round);
	memset(out, 0xff, count * sizeof *out);
	MPI_Allreduce(in, out, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) {
		long want = 0;
		for (int r = 0; r < ranks; r++)
			want += element(r, 0, i, round);
		wrong += out[i] != want;
	}
	free(in);
	free(out);
	return wrong;
}

static long alltoall(int rank, int ranks, int count, int round)
{
	long wrong = 0, *in = malloc(count * ranks * sizeof *in), *out = malloc(count * ranks * sizeof *out);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < count; i++)
			in[r * count + i] = element(rank, r, i, round);
	memset(out, 0xff, count * ranks * sizeof *out);
	MPI_Alltoall(in, count, MPI_LONG, out, count, MPI_LONG, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < count; i++)
			wrong += out[r * count + i] != element(r, rank, i, round);
	free(in);
	free(out);
	return wrong;
}

int main(int argc, char **argv)
{
	/* Elements of 8 bytes: below, at and above the sizes at which UCX changes its protocol. */
	static const int counts[] = {1, 3, 127, 128, 1000, 1025, 8192, 32769};
	int rank, ranks;
	long wrong = 0, total = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++)
		for (int round = 0; round < 3; round++)
			wrong += argc > 1 && !strcmp(argv[1], "alltoall") ? alltoall(rank, ranks, counts[c], round)
									  : allreduce(rank, ranks, counts[c], round);
	MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank && total)
		printf("%ld elements are wrong\n", total);
	else if (!rank)
		printf("%s of %d ranks: all right\n", argc > 1 ? argv[1] : "allreduce", ranks);
	MPI_Finalize();
	return total != 0;
}
