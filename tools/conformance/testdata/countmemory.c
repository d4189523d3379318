/*
 * The first process of a virtual machine that is moved while it runs. It counts on the console, and before each number it reads a pattern
 * of 24 MiB that the number before has left, word by word, and writes the next one. A page that was lost, mixed up, or of another time,
 * on the way is said, and ends it.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define WORDS (3u << 20)

static uint64_t words[WORDS];

static uint64_t pattern(uint64_t round, uint64_t at)
{
	uint64_t x = round * 0x9e3779b97f4a7c15ull + at;
	x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
	return x ^ x >> 32;
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	for (uint64_t i = 0; i < WORDS; i++)
		words[i] = pattern(0, i);
	for (uint64_t round = 0;; round++) {
		for (uint64_t i = 0; i < WORDS; i++) {
			if (words[i] != pattern(round, i)) {
				printf("memory is wrong: round %lu, word %lu is %#lx\n", round, i, words[i]);
				for (;;)
					pause();
			}
			words[i] = pattern(round + 1, i);
		}
		printf("round %lu\n", round);
		nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
	}
}
