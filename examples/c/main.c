#include <stdio.h>

#include "rot13.h"

int main(void)
{
	int c;

	while ((c = getchar()) != EOF)
		if (putchar(rot13(c)) == EOF)
			return 1;
	return ferror(stdin) || fflush(stdout) == EOF;
}
