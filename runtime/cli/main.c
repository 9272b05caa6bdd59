#include <stdio.h>

int main(void)
{
    puts("fuserun");
    return 0;
}
