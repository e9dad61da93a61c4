// set-policy DIR IDENTIFIER LOG2: sets a v2 policy (AES-256-XTS, AES-256-CTS, padding 32) with data units of 2^LOG2
// bytes, which no tool has an option for.
#include <fcntl.h>
#include <linux/fscrypt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	struct fscrypt_policy_v2 policy = { .version = 2, .contents_encryption_mode = 1, .filenames_encryption_mode = 4, .flags = 3 };
	unsigned char *bytes = (void *)&policy;
	int i, fd;

	if (argc != 4)
		return 2;
	// log2_data_unit_size since Linux 6.7; older headers call it reserved.
	bytes[4] = atoi(argv[3]);
	for (i = 0; i < 16; i++) {
		unsigned value;
		if (sscanf(argv[2] + 2 * i, "%2x", &value) != 1)
			return 2;
		policy.master_key_identifier[i] = value;
	}
	fd = open(argv[1], O_RDONLY);
	if (fd < 0 || ioctl(fd, FS_IOC_SET_ENCRYPTION_POLICY, &policy)) {
		perror(argv[1]);
		return 1;
	}
	return 0;
}
