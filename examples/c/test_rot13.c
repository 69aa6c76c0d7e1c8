#include <stdio.h>

#include "rot13.h"

static int failures;

static void check(int in, int want)
{
	int got = rot13(in);

	if (got != want) {
		fprintf(stderr, "rot13(%c) is %c, not %c\n", in, got, want);
		failures++;
	}
}

int main(void)
{
	check('a', 'n');
	check('z', 'm');
	check('A', 'N');
	check('Z', 'M');
	check(' ', ' ');
	check('0', '0');
	for (int c = 0; c < 256; c++)
		check(rot13(c), c);
	if (failures == 0)
		puts("ok");
	return failures != 0;
}
