"""Independent NumPy version of the exact expert function, written from the text with int64 everywhere.

`python exact_vectors.py` writes exact_vectors.safetensors: per type and row the quantised row, the f32 bits of the
inner row and the weighted outputs. Weights and rows are drawn from SplitMix64, so that only results are stored.
Needs numpy and safetensors.
"""
import numpy as np
I=np.int64
def clz(v): # v int64 >=0 < 2^32
    v=np.asarray(v,I); b=np.zeros(v.shape,I)
    x=v.copy()
    for s in (16,8,4,2,1):
        m=x>=(1<<s); b=np.where(m,b+s,b); x=np.where(m,x>>s,x)
    return np.where(v==0,32,31-b)
def rsh(v,r):
    r=np.minimum(np.asarray(r,I),62); r1=np.maximum(r-1,0)
    return np.where(r==0,v,(v>>r)+((v>>r1)&1))
def quant(bits):
    b=np.asarray(bits,np.uint32).astype(I); K=b.shape[-1]; n=K//256
    b=b.reshape(-1,n,16,16); mag=b&0x7fffffff; Mj=mag.max(-1); M=Mj.max(-1); e=M>>23
    poison=(e>227).any()
    m24=(M&0x7fffff)|0x800000; F=e-150+np.where(m24<=15605760,13,14); z=e<27
    ej=Mj>>23; d=F[...,None]-(ej-150); sh=np.clip(np.minimum(d-10,25),0,25)
    nn=(((Mj&0x7fffff)|0x800000)+(1<<sh)-1)>>sh; s=(nn+130047)//130048
    s=np.where((ej==0)|z[...,None],0,s)
    ei=mag>>23; di=F[...,None,None]-(ei-150); ok=(ei!=0)&(di<=24)&(s[...,None]>0); dc=np.clip(di,1,24)
    t=(((mag&0x7fffff)|0x800000)+(s[...,None]<<(dc-1)))>>dc
    q=np.where(ok,t//np.maximum(s[...,None],1),0)
    q=np.where(b>>31!=0,-q,q); F=np.where(z,-128,F)
    A=(np.abs(q).sum(-1)*s).sum(-1); L=32-clz(A)
    E=np.where(L>0,F+L,-10**6); Em=E.max(-1)
    return dict(q=q,s=s,F=F,L=L,Emax=Em,poison=poison,K=K)
def f16(h):
    h=np.asarray(h,np.uint16).astype(I); e=(h>>10)&31; m=(h&0x3ff)|np.where(e!=0,1024,0)
    return np.where(h&0x8000,-m,m), np.maximum(e,1)-25
def parse(ty,raw,rows,K):
    n=K//256; r=np.frombuffer(raw,np.uint8)
    if ty=='Q4_K':
        r=r.reshape(rows,n,144); d=r[...,0:2].copy().view(np.uint16)[...,0]; dm=r[...,2:4].copy().view(np.uint16)[...,0]
        a=r[...,4:16].astype(I); sc=np.zeros((rows,n,8),I); mn=sc.copy()
        for j in range(8):
            if j<4: sc[...,j]=a[...,j]&63; mn[...,j]=a[...,j+4]&63
            else: sc[...,j]=(a[...,j+4]&15)|((a[...,j-4]>>6)<<4); mn[...,j]=(a[...,j+4]>>4)|((a[...,j]>>6)<<4)
        qs=r[...,16:].reshape(rows,n,4,32).astype(I); q=np.stack([qs&15,qs>>4],3).reshape(rows,n,8,32)
        return dict(k=10,q=q,sc=sc,mn=mn,d=d,dm=dm)
    if ty=='Q5_K':
        r=r.reshape(rows,n,176); d=r[...,0:2].copy().view(np.uint16)[...,0]; dm=r[...,2:4].copy().view(np.uint16)[...,0]
        a=r[...,4:16].astype(I); sc=np.zeros((rows,n,8),I); mn=sc.copy()
        for j in range(8):
            if j<4: sc[...,j]=a[...,j]&63; mn[...,j]=a[...,j+4]&63
            else: sc[...,j]=(a[...,j+4]&15)|((a[...,j-4]>>6)<<4); mn[...,j]=(a[...,j+4]>>4)|((a[...,j]>>6)<<4)
        qs=r[...,48:].reshape(rows,n,4,32).astype(I); q=np.stack([qs&15,qs>>4],3).reshape(rows,n,8,32)
        qh=r[...,16:48].astype(I)
        q=q+(((qh[...,None,:]>>np.arange(8)[:,None])&1)<<4)
        return dict(k=11,q=q,sc=sc,mn=mn,d=d,dm=dm)
    if ty=='Q4_0':
        r=r.reshape(rows,n*8,18); qs=r[...,2:].astype(I); q=np.concatenate([qs&15,qs>>4],-1)-8
        return dict(k=3,q=q.reshape(rows,n,8,32),d=r[...,:2].copy().view(np.uint16)[...,0].reshape(rows,n,8))
    if ty=='Q6_K':
        r=r.reshape(rows,n,210); ql=r[...,:128].reshape(rows,n,2,2,32).astype(I); qh=r[...,128:192].reshape(rows,n,2,32).astype(I)
        q=np.stack([(ql[...,0,:]&15)|((qh&3)<<4),(ql[...,1,:]&15)|(((qh>>2)&3)<<4),(ql[...,0,:]>>4)|(((qh>>4)&3)<<4),(ql[...,1,:]>>4)|((qh>>6)<<4)],3)-32
        return dict(k=12,q=q.reshape(rows,n,16,16),sc=r[...,192:208].copy().view(np.int8).astype(I),d=r[...,208:210].copy().view(np.uint16)[...,0])
    r=r.reshape(rows,n*8,34); return dict(k=7,q=r[...,2:].copy().view(np.int8).astype(I).reshape(rows,n,8,32),d=r[...,:2].copy().view(np.uint16)[...,0].reshape(rows,n,8))
def dequant(w):
    def f(h): m,e=f16(h); return m*2.0**e
    rows=w['q'].shape[0]
    if w['k'] in (10,11): return (f(w['d'])[...,None,None]*w['sc'][...,None]*w['q']-f(w['dm'])[...,None,None]*w['mn'][...,None]).reshape(rows,-1)
    if w['k']==12: return (f(w['d'])[...,None,None]*w['sc'][...,None]*w['q']).reshape(rows,-1)
    return (f(w['d'])[...,None]*w['q']).reshape(rows,-1)
def rowdot(w,a): # one token
    rows=w['q'].shape[0]; q=a['q'][0]; s=a['s'][0]; L=a['L'][0]; F=a['F'][0]; Em=a['Emax'][0]; k=w['k']
    if (L==0).all(): return np.zeros(rows,I),np.zeros(rows,I)
    m,ed=f16(w['d']); Ed=ed.reshape(rows,-1).max(1)
    if k in (10,11): m2,ed2=f16(w['dm']); Ed=np.maximum(Ed,ed2.reshape(rows,-1).max(1))
    h=np.where(L>0,31-k-L,0); Rx=np.where(L>0,17+Em-(F+L),17)
    def unit(m,ed,isum,h,Rx,Edx):
        v=isum<<h; assert (np.abs(v)<2**31).all(); return rsh(m*v,Rx+Edx-ed)
    if k in (10,11):
        dot=(w['q'].reshape(rows,-1,16,16)*q[None]).sum(-1); isum=(dot*np.repeat(w['sc'],2,-1)*s[None]).sum(-1); ms=(np.repeat(w['mn'],2,-1)*s[None]*q.sum(-1)[None]).sum(-1)
        c=unit(m,ed,isum,h[None],Rx[None],Ed[:,None])-unit(m2,ed2,ms,h[None],Rx[None],Ed[:,None])
    elif k==12:
        dot=(w['q']*q[None]).sum(-1); isum=(dot*w['sc']*s[None]).sum(-1)
        c=unit(m,ed,isum,h[None],Rx[None],Ed[:,None])
    else:
        dot=((w['q'].reshape(rows,-1,16,16)*q[None]).sum(-1)*s[None]).reshape(rows,-1,8,2).sum(-1); c=unit(m,ed,dot,h[None,:,None],Rx[None,:,None],Ed[:,None,None]).sum(-1)
    acc=np.where(L[None]>0,c,0).sum(1); assert (np.abs(acc)<2**31).all()
    return acc, Ed+Em+k-31+17
T=np.rint(2.0**30/(1+np.exp(-np.arange(513)/32.0))).astype(I)
def norm16(v,e): lz=clz(v); n=(v<<lz)&0xffffffff; return np.minimum((n>>16)+((n>>15)&1),65535), e+16-lz
def swiglu(ag,ug,au,uu):
    mg,eg=norm16(np.abs(ag),ug); mu,eu=norm16(np.abs(au),uu); p=eg+13
    sft=np.clip(-p,1,40)
    xf=np.where(p==1,mg<<1,np.where(p==0,mg,np.where(p<-17,0,(mg+(1<<(sft-1)))>>sft))); xf=np.where(p>=2,0,xf)
    i=xf>>8; fr=xf&255; sp=T[i]+(((T[i+1]-T[i])*fr+128)>>8); sp=np.where(p>=2,1<<30,sp)
    sg=np.where(ag<0,(1<<30)-sp,sp); ms,es=norm16(sg,np.full_like(sg,-30)); m1,e1=norm16(mg*ms,eg+es); pr=m1*mu; e2=e1+eu
    lz=clz(pr); n=(pr<<lz)&0xffffffff; m24=(n>>8)+((n>>7)&1); be=31+e2-lz+127; sign=((ag<0)!=(au<0)).astype(I)<<31
    r=np.where(be<1,0,np.where(be>253,sign|0x7f000000,sign|((be<<23)+(m24-0x800000))))
    return np.where((ag==0)|(au==0)|(sg==0),0,r).astype(np.uint32)
def combine(acc,U,mw,ew,G):
    r=G-U-ew; o=rsh(acc*mw,np.clip(r,0,62)); bad=((r<1)|(np.abs(o)>=1<<27))&(acc!=0)
    return np.where((acc==0)|bad,0,o), bad.any()
def expert(bits,wg,wu,wd,mw,ew,G):
    a=quant(bits); g,ug=rowdot(wg,a); u,uu=rowdot(wu,a); h=swiglu(g,ug,u,uu); ha=quant(h)
    if ha['poison']: return None
    d,ud=rowdot(wd,ha); o,rng=combine(d,ud,mw,ew,G); return o,rng,h


def splitmix(seed,n):
    with np.errstate(over='ignore'):
        z=np.uint64(seed)+np.arange(1,n+1,dtype=np.uint64)*np.uint64(0x9e3779b97f4a7c15)
        z=(z^(z>>np.uint64(30)))*np.uint64(0xbf58476d1ce4e5b9)
        z=(z^(z>>np.uint64(27)))*np.uint64(0x94d049bb133111eb)
        return z^(z>>np.uint64(31))
BLOCKS=dict(Q4_K=(256,144,(0,2)),Q5_K=(256,176,(0,2)),Q6_K=(256,210,(208,)),Q8_0=(32,34,(0,)),Q4_0=(32,18,(0,)))
def weights(ty,seed,rows,cols):
    """Random bytes; the scales' high bytes become 0x18 .. 0x1f with either sign."""
    per,size,scales=BLOCKS[ty]; b=(splitmix(seed,rows*cols//per*size)>>np.uint64(56)).astype(np.uint8).reshape(-1,size)
    for at in scales: b[:,at+1]=0x18|(b[:,at+1]&0x87)
    return b.tobytes()
def row(seed,n):
    """Multiples of 2^-20 within 8, every 61st element 64 times as large."""
    x=((splitmix(seed,n)>>np.uint64(40)).astype(np.int64)-(1<<23)).astype(np.float64)/(1<<20)
    x[7::61]*=64
    return x.astype(np.float32)
if __name__=='__main__':
    from safetensors.numpy import save_file
    out={}
    for t,ty in enumerate(BLOCKS):
        m=[parse(ty,weights(ty,1000*t+i,256,256),256,256) for i in range(3)]
        for r in range(3):
            bits=row(77+r,256).view(np.uint32)[None]
            a=quant(bits)
            s=a['s'][0].astype(np.uint8).reshape(-1,8,2)
            wire=np.concatenate([a['F'][0].astype(np.int8).view(np.uint8)[:,None],s[...,0]|(s[...,1]<<4),a['q'][0].reshape(-1,256).astype(np.int8).view(np.uint8)],1).reshape(-1)
            for G in range(-40,90):
                got=expert(bits,*m,40000+r,-17,G)
                assert got is not None
                if not got[1]: break
            o,_,h=got
            assert (np.abs(o)>1<<20).sum()>100,(ty,G,np.abs(o).max())
            out[f'{ty}.{r}.row']=wire; out[f'{ty}.{r}.inner']=h.reshape(-1).astype(np.uint32)
            out[f'{ty}.{r}.outputs']=o.astype(np.int32); out[f'{ty}.{r}.grid']=np.array([G],np.int32)
    save_file(out,'exact_vectors.safetensors')
