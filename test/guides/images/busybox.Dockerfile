# busybox, as Debian has it, in the place of the image of that name, for the applications of the guides.
FROM scratch
COPY bin/guides/busybox/ /
ENV PATH="/bin"
ENTRYPOINT ["/bin/sh"]
