#ifndef ROT13_H
#define ROT13_H

/* rot13 returns letter c moved by thirteen places, and any other character as it is. */
int rot13(int c);

#endif
