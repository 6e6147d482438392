#!/bin/sh
# Make the keys and certificates of the TLS tests. They are valid from 2020 to 2120, and the keys protect nothing.
# The members' authority signs:
# - member: a valid certificate for 127.0.0.1 and ::1
# - by-name: for the DNS name localhost instead of an IP address
# - other-host: for an IP address that is not a member's
# - expired: valid only until 2020-01-02
# - server-only: not allowed for clients, so a member with it cannot open a link
# Another authority, which members do not trust, signs "stranger".
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

cat >"$work/ca.cnf" <<END
[ca]
default_ca = test
[test]
new_certs_dir = $work
database = $work/index
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
END
: >"$work/index"

# sign NAME KEY END OPTION: make NAME.pem from the request NAME; it is valid until END and signed with KEY
sign() {
    openssl ca -config "$work/ca.cnf" -batch -notext -in "$work/$1.csr" -out "$1.pem" \
        -startdate 20200101000000Z -enddate "$2" -keyfile "$3" $4 2>/dev/null
}

request() { # NAME KEY EXTENSION...
    name=$1 key=$2
    shift 2
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$key" 2>/dev/null
    for extension; do set -- "$@" -addext "$extension"; shift; done
    openssl req -new -key "$key" -subj "/CN=$name" -out "$work/$name.csr" "$@"
}

authority() { # NAME
    request "$1" "$work/$1.key" basicConstraints=critical,CA:true keyUsage=critical,keyCertSign
    sign "$1" 21200101000000Z "$work/$1.key" -selfsign
}

certificate() { # NAME AUTHORITY SUBJECT_ALT_NAME USES END
    request "$1" "$1.key" "subjectAltName=$3" "extendedKeyUsage=$4"
    sign "$1" "$5" "$work/$2.key" "-cert $2.pem"
}

both=serverAuth,clientAuth
authority authority
authority stranger-authority
certificate member authority IP:127.0.0.1,IP:::1 "$both" 21200101000000Z
certificate by-name authority DNS:localhost "$both" 21200101000000Z
certificate other-host authority IP:127.0.0.99 "$both" 21200101000000Z
certificate expired authority IP:127.0.0.1 "$both" 20200102000000Z
certificate server-only authority IP:127.0.0.1 serverAuth 21200101000000Z
certificate stranger stranger-authority IP:127.0.0.1 "$both" 21200101000000Z
